"""Of aggregator.toml what orders and tokens need, whatever is trained there and whether that can be trained here."""

from __future__ import annotations

from config.identity_settings import Enrolment, Identity
from config.settings import Site
from config.table import Table


class SiteSettings(Table, extra="ignore"):
    """The tables of aggregator.toml that say which site it is and who belongs to it."""

    aggregator: Site
    identity: Identity | None = None
    enrolment: Enrolment | None = None
