"""Where samples come from: each source turns a message into a `Block` on the gateway's timeline."""
