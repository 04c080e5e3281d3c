"""A sample's way to an alarm, as a value: one baseline, one model, one level, and what they remember."""
