"""What a simulated world promises of alarms: damage raises one, with its evidence, and what is done about it stays."""
