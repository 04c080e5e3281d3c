"""The aggregator: it opens rounds, counts updates once, advances the algorithm and releases signed models.

Reading order: `machine` (what happens on each event), `rounds` (a round from invitation to model), `updates` (what is
counted in it), `release` (parameters to a signed ONNX model), `alarms` (what becomes of an alarm), `store` (what is on
disk), `__main__` (the command).
"""
