"""Changes of alarms on their way to a webhook or to people: what each gets, and the queue in which it waits."""
