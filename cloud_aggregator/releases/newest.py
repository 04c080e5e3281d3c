"""The numbers that this aggregator has used last, signed and published: of models, and of trainings.

Each gateway keeps them, takes nothing older, and publishes them again under its own name. So an aggregator that lost
its store, or was given an old one back, learns which numbers are taken from any one of them, and no gateway can claim
a number that was not signed here.
"""

from __future__ import annotations

from fedgate.cloud_aggregator.events import Effect, Publish
from fedgate.cloud_aggregator.releases import signatures
from fedgate.cloud_aggregator.state import State, topic
from fedgate.config.identity import signing
from fedgate.config.protocol.messages import MessageError, Newest, audience_of
from fedgate.config.protocol.topics import ALL
from fedgate.models.records import replace

Result = tuple[State, list[Effect]]
NUMBERS = ("version", "highest_version", "training")


def of(state: State) -> Newest:
    """Return the numbers as they are now, none of them below what was published or came back."""
    known, version = state.newest, state.manifest.version if state.manifest else 0
    return Newest(
        version=max(known.version, version),
        highest_version=max(known.highest_version, version, state.staging.newest),
        training=max(known.training, state.training),
    )


def publish(state: State) -> Result:
    """Publish the numbers, retained."""
    state = replace(state, newest=of(state))
    signed = signatures.signed(state.newest, state.key, _audience(state), state.now_ns)
    return state, [Publish(topic(state, ALL, "newest", "current"), signed.to_bytes(), retain=True)]


def publish_if_changed(state: State) -> Result:
    """Publish the numbers where one of them has grown."""
    return publish(state) if state.connected and of(state) != state.newest else (state, [])


def learn(state: State, payload: bytes) -> Result:
    """Take in numbers that come back, whoever brings them: what counts is that they were signed here.

    Raises `MessageError`.
    """
    message, known = Newest.from_bytes(payload), of(state)
    known = Newest(**{name: max(getattr(known, name), getattr(message, name)) for name in NUMBERS})
    if known == of(state):
        return state, []
    is_signed = signing.verified(state.key.public_key(), message.signed_bytes(), message.signature)
    if message.audience != _audience(state) or not is_signed:
        raise MessageError("newest: it was not signed by this aggregator")
    return replace(state, newest=known), []


def _audience(state: State) -> str:
    return audience_of(state.settings.aggregator.site, ALL)
