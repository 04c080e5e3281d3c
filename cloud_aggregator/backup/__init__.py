"""Backups: the file, its seal, and what a store that comes from one needs."""
