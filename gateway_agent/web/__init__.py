"""A gateway's own page: what a field engineer opens through ssh, read-only, served by a process of its own."""
