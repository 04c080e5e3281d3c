"""What both ends must agree on: settings, topics, messages, the wire format and the MQTT link.

Beside the code lie the files an operator edits or installs: commented default settings for the gateway and the
aggregator.
"""

import os

# From 1.29 on onnxruntime tells its maker which models it runs, unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
