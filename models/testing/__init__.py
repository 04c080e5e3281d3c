"""The laws that algorithms and detectors keep, as functions for the tests of whoever writes one."""

from fedgate.models.testing.detectors import check_detector
from fedgate.models.testing.fleet import Gateway
from fedgate.models.testing.laws import check_laws

__all__ = ["Gateway", "check_detector", "check_laws"]
