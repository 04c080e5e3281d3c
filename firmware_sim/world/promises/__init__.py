"""What a simulated world promises, and who watches whether it is kept."""
