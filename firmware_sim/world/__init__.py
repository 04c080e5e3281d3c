"""A seeded world: the real services on simulated machines, and who watches whether promises are kept."""
