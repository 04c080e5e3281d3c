"""The numbers that this aggregator has used last, signed and published: of models, and of trainings.

Each gateway keeps them, takes nothing older, and publishes them again under its own name. So an aggregator that lost
its store, or was given an old one back, learns which numbers are taken from any one of them, and no gateway can claim
a number that was not signed here.
"""

from __future__ import annotations

from dataclasses import replace

from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Effect, Publish
from fedgate.cloud_aggregator.releases.releases import Releases
from fedgate.config.identity import signing
from fedgate.config.protocol.messages import MessageError, Newest, name_audience
from fedgate.config.protocol.topics import ALL

Result = tuple[Releases, list[Effect]]
NUMBERS = ("version", "highest_version", "training")


def find_newest(releases: Releases, training: int) -> Newest:
    """Return the numbers as they are now, with the `training` at hand; none is below one published or learned."""
    return Newest(
        version=max(releases.newest.version, releases.version),
        highest_version=releases.highest_version,
        training=max(releases.newest.training, training),
    )


def publish(releases: Releases, context: Context, training: int) -> Result:
    """Publish the numbers, retained."""
    releases = replace(releases, newest=find_newest(releases, training))
    signed = context.sign(releases.newest)
    return releases, [Publish(context.topic(ALL, "newest", "current"), signed.to_bytes(), retain=True)]


def publish_if_changed(releases: Releases, context: Context, training: int) -> Result:
    """Publish the numbers where one of them has grown."""
    return (
        publish(releases, context, training)
        if context.is_connected and find_newest(releases, training) != releases.newest
        else (releases, [])
    )


def learn(releases: Releases, context: Context, training: int, payload: bytes) -> Result:
    """Take in numbers that come back, whoever brings them: what counts is that they were signed here.

    Raises `MessageError`.
    """
    message, known = Newest.from_bytes(payload), find_newest(releases, training)
    known = Newest(**{name: max(getattr(known, name), getattr(message, name)) for name in NUMBERS})
    if known == find_newest(releases, training):
        return releases, []
    is_signed = signing.verify(context.key.public_key(), message.signed_bytes(), message.signature)
    if message.audience != name_audience(context.settings.aggregator.site, ALL) or not is_signed:
        raise MessageError("newest: it was not signed by this aggregator")
    return replace(releases, newest=known), []
