"""The study of the memory of echo state networks."""
