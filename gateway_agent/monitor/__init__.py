"""What is watched, and which alarms are active."""
