"""A configured gateway on a recording, without a broker: its features, its scores, its level and its alarms."""
