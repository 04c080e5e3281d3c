"""The agent on a gateway: samples in, alarms and updates out, models in.

Reading order: `monitor.pipeline` (a sample becomes an alarm), `machine` (what happens on each event),
`training.training` and `deployment.activation` (a round, a model), `runtime.service` and `runtime.agent` (the I/O).
"""

from fedgate import config as config  # before onnxruntime, see there
