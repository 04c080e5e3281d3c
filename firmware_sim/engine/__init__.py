"""One engine for every comparison: cells that a probe measures, chosen, averaged and laid out as a report."""
