"""What was signed, by which keys, and whether it is the newest: what a gateway believes of its site."""
