"""Studies by name: each reproduces tables of one paper from a TOML file and puts paper and measured side by
side. They are in a clone, not in the wheel.
"""
