"""What both ends must agree on: settings, topics, messages, the wire format and the MQTT link.

Beside the code lie the files an operator edits or installs: commented default settings for the gateway and the
aggregator.
"""
