"""A reader for each file format, into named columns."""
