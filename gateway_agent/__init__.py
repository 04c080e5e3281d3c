"""The agent on a gateway: samples in, alarms and updates out, models in.

Reading order: `pipeline` (a sample becomes an alarm), `machine` (what happens on each event), `learning` and
`candidate` (a round, a model), `__main__` (the shell that does the I/O).
"""

import config as config  # before onnxruntime, see there
