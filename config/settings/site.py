"""Of aggregator.toml what orders and tokens need, whatever is trained there and whether that can be trained here."""

from __future__ import annotations

from fedgate.config.settings.base import Table
from fedgate.config.settings.identity import Enrolment, Identity
from fedgate.config.settings.settings import Site


class SiteSettings(Table, extra="ignore"):
    """The tables of aggregator.toml that say which site it is and who belongs to it."""

    aggregator: Site
    identity: Identity | None = None
    enrolment: Enrolment | None = None
