"""Settings: a table each, and the two files that they stand in."""
