"""The simulator: replay recorded streams as sensor nodes, run the whole system on them, compare federated
algorithms.
"""
