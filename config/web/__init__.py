"""What the pages of both programs share: how they look, what they draw, and the server that serves them."""
