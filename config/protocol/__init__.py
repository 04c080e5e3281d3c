"""What both ends say to each other: topics, messages, arrays and transfers."""
