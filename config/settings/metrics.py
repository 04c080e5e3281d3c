"""Where the metrics of the aggregator are served."""

from __future__ import annotations

from ipaddress import ip_address

from pydantic import field_validator

from fedgate.config.settings.base import Table

PORT_MAX = 65_535


class MetricsTable(Table):
    """Where `cloud-aggregator metrics --listen` serves; it is a process beside the aggregator's."""

    listen: str | None = None  # ADDRESS:PORT of this machine; None: nowhere

    @field_validator("listen")
    @classmethod
    def _check_address(cls, listen: str | None) -> str | None:
        if listen is not None:
            read_address(listen)
        return listen


def read_address(text: str) -> tuple[str, int]:
    """Return address and port of `127.0.0.1:9464` or `[::1]:9464`; raises `ValueError`."""
    host, _, port = text.rpartition(":")
    problem = f"expected ADDRESS:PORT, such as 127.0.0.1:9464 or [::1]:9464, got {text!r}"
    if not port.isdecimal() or not port.isascii() or int(port) > PORT_MAX:
        raise ValueError(problem)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ip_address(bare)
    except ValueError:
        raise ValueError(problem) from None
    if (address.version == 6) != (bare != host):
        raise ValueError(problem)
    return bare, int(port)
