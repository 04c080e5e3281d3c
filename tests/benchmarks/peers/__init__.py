"""Other people's programs on the same tasks: `make bench-peers` puts them into an environment of their own."""
