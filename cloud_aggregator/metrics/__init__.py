"""Metrics: what a store knows of a site, as families that Prometheus collects."""
