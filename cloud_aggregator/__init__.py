"""The aggregator: it opens rounds, counts updates once, advances the algorithm and releases signed models.

Reading order: `machine` (what happens on each event), `rounds.round` (a round from invitation to model),
`rounds.intake` (an update is counted in it), `releases.deploy` (parameters to a signed ONNX model), `alarms.handling`
(what becomes of an alarm), `storage.store` (what is on disk).
"""
