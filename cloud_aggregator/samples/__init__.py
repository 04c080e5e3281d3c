"""Raw samples around alarms, which an operator asks of a gateway where the site allows it."""
