"""What the aggregator announces of models, to all gateways or to one, and the bodies that they ask for."""

from __future__ import annotations

from dataclasses import replace

from fedgate.cloud_aggregator.context import Context, Payload
from fedgate.cloud_aggregator.events import Effect, Publish
from fedgate.cloud_aggregator.limits import Allowance
from fedgate.cloud_aggregator.releases.releases import ModelRelease, Releases
from fedgate.config.protocol.messages import Manifest, MessageError
from fedgate.config.protocol.topics import ALL

BODIES, BODY_S = 4, 60.0  # that a gateway is sent at once as it asks, and in which time it may ask for one more
WHOLE_BYTES = 256 * 1024  # a smaller body counts for its share of this: such questions cost nobody anything


def manifest(context: Context, current: Manifest, gateway: str = ALL) -> Publish:
    """Return the announcement of a model, retained, and signed for those whom it is for."""
    signed = context.sign(current, gateway)
    return Publish(context.topic(gateway, "manifest", "current"), signed.to_bytes(), retain=True)


def retract(context: Context, gateway: str) -> Publish:
    """Return what ends the announcement to one gateway: what is announced to all holds for it too."""
    return Publish(context.topic(gateway, "manifest", "current"), b"", retain=True)


def announce(context: Context, made: ModelRelease, gateway: str = ALL) -> list[Effect]:
    """Return the announcement of a model and its chunks."""
    return [
        manifest(context, made.manifest, gateway),
        *context.make_chunks(gateway, Payload(made.manifest.model, made.body)),
    ]


def announce_keys(context: Context) -> list[Publish]:
    """Return the announcement of the keys that the site goes by, retained: it goes before all that they sign."""
    return [Publish(context.topic(ALL, "keys", "current"), context.keys, retain=True)] if context.keys else []


def list_announcements(releases: Releases, context: Context) -> list[Effect]:
    """Return the announcements that hold now, for a broker that may have lost them; without the models themselves."""
    effects: list[Effect] = [] if releases.manifest is None else [manifest(context, releases.manifest)]
    alone = ((name, releases.find_alone(name)) for name in releases.recipients)
    return [*effects, *(manifest(context, made.manifest, name) for name, made in alone if made is not None)]


def send_due_chunks(
    releases: Releases, context: Context, shared: Payload | None, gateway: str, digest: str, missing: tuple[int, ...]
) -> tuple[Releases, list[Effect]]:
    """Return the chunks a gateway asks for, of a model or of the `shared` parameters; raises `MessageError`.

    A question of 20 bytes may ask for megabytes, on a line that all share. So a gateway gets `BODIES` bodies as it
    asks, and from then on one each `BODY_S`.
    """
    parcel = _parcel(releases, shared, gateway, digest)
    effects = context.make_chunks(gateway, parcel, missing)
    asked = len(effects) / parcel.transfer.chunks * min(len(parcel.body) / WHOLE_BYTES, 1.0)
    before = releases.fetched.get(gateway, Allowance()).compute_used(context.uptime_ns, BODY_S)
    if before + asked > BODIES:
        raise MessageError(f"{gateway} asks for more than {BODIES} bodies, and more than one in {BODY_S:g} s")
    return replace(releases, fetched={**releases.fetched, gateway: Allowance(before + asked, context.uptime_ns)}), [
        *effects
    ]


def _parcel(releases: Releases, shared: Payload | None, gateway: str, digest: str) -> Payload:
    for made in (releases.everywhere, releases.find_alone(gateway)):
        if made is not None and digest == made.manifest.model.digest:
            return Payload(made.manifest.model, made.body)
    if shared is not None and digest == shared.transfer.digest:
        return shared
    raise MessageError(f"{gateway} asks for {digest[:12]}, which is neither the model nor the shared parameters")
