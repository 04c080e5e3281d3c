"""The commands of `cloud-aggregator`, but for `run`."""
