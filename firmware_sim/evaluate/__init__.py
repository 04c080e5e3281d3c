"""Evaluations on a user's own tables and recordings: what is read, how it is split, and what is run and scored."""
