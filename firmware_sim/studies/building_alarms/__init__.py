"""The study of alarms in a building, held against what was promised."""
