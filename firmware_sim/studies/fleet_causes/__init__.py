"""The study of causes that a whole fleet shares."""
