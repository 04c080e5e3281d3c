"""What an alarm rests on, read by rules and written as text. Pure."""
