"""The commands of `gateway-agent`, but for `run`."""
