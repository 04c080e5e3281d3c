"""A configured gateway on a recording, without a broker: its scores, its level and its alarms, from file to page."""
