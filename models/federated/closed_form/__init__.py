"""Models that follow from sums: ridge readouts of echo state networks, and principal subspaces."""
