"""The study of what federation is worth and costs in a building."""
