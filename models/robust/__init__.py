"""Distributionally robust linear classification: what one gateway solves, without any federation.

`ball` says what is hedged against, `open_support` and `box` find the worst case at given weights, `interior_point`
finds the best weights against it. The federated algorithms on top are `fedgate.models.federated.robust_svm_*`.
"""
