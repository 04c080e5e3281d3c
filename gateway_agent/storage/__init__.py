"""The agent's store: one SQLite file that survives power cuts, full disks and damage."""
