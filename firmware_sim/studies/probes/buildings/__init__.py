"""Rooms and air handlers: forecasts, what federation costs, and alarms."""
