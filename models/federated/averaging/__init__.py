"""Averages of changes: FedAvg of linear, echo state and recurrent models, and what grew from it."""
