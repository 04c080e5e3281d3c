"""Recordings of sensors by step of time: what a file holds, and what studies take of them."""
