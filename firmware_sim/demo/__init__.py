"""The demos: the whole system as real processes on recordings, and the report of how it went."""
