"""The way to a broker."""
