"""Distributionally robust SVMs over gateways, and what each gateway solves for them.

`ball` says what is hedged against, `open_support` and `box` find the worst case at given weights, `interior_point`
finds the best weights against it; `admm` and `subgradient` are the federated algorithms on top.
"""
