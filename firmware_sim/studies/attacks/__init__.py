"""The study of gateways that lie, and what defences are worth."""
