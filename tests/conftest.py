"""How hypothesis runs here: the same examples every time, and a slow or busy machine is not a finding."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fedgate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("fedgate")
