"""What the doctors of both programs look at."""
