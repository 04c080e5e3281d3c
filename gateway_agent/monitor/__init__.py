"""From samples to alarms: the pipeline of one baseline, one model and one level."""
