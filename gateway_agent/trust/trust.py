"""The record of what a gateway believes of its site."""

from __future__ import annotations

from dataclasses import dataclass

from fedgate.config.protocol.messages import Newest
from fedgate.gateway_agent.runtime.signature_worker import Take, Verified, take_none

NEWEST, SIGNER = "newest", "signer"  # keys of stored blobs


@dataclass(frozen=True)
class Trust:
    """By which keys, and by which numbers, what arrives is judged."""

    verified: Verified  # tells whether the release key signed some bytes
    take_keys: Take = take_none  # keeps a statement of the site's keys
    refused_keys: str = ""  # the statement refused last, by its SHA-256
    signer: str = ""  # whose the numbers of models and trainings here are: the release key, by its SHA-256
    newest: Newest | None = None  # that the aggregator has signed
    newest_ns: int = 0  # when this process took it in, since the boot
    stale: str = ""  # why what is here may not be the newest
