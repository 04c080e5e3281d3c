"""The pure core: samples to windows to features to scores to alarms, and the federated algorithms.

Nothing in this package reads a clock, a file, a socket or a global random generator, so the same code runs on a
gateway, in the cloud and in a simulation. Reading order for a newcomer: `arrays`, `federated.algorithm`,
`federated.run`, `federated.fedavg`.
"""
