"""Alarms of gateways: which are active, the alarm of the whole site, and who is notified of them."""
