"""What fedgate costs a gateway: time, memory, disk. Figures are printed beside their targets and never asserted."""
