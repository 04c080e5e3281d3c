"""Scores to alarms: levels from a gateway's own baseline, rules, profiles of context, the course of an alarm."""
