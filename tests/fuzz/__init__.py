"""Garbage for all that reads what others wrote: each reader must answer with its declared error, or with none."""
