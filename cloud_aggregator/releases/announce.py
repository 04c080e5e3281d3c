"""What the aggregator tells of models, to all gateways or to one, and the bodies that they ask for."""

from __future__ import annotations

from fedgate.cloud_aggregator.events import Effect, Publish
from fedgate.cloud_aggregator.releases import signatures
from fedgate.cloud_aggregator.releases.rollout import BuiltModel
from fedgate.cloud_aggregator.state import Parcel, Spent, State, topic
from fedgate.config.protocol.messages import Manifest, MessageError, audience_of
from fedgate.config.protocol.topics import ALL
from fedgate.config.protocol.transfer import pieces_of
from fedgate.models.records import replace

BODIES, BODY_S = 4, 60.0  # that a gateway is sent at once as it asks, and in which time it may ask for one more
WHOLE_BYTES = 256 * 1024  # a smaller body counts for its share of this: such questions cost nobody anything


def chunks(state: State, gateway: str, parcel: Parcel, missing: tuple[int, ...] = ()) -> list[Publish]:
    """Return the chunks of a body for one gateway or all of them; all chunks where none are named."""
    transfer, body = parcel
    wanted = sorted({index for index in missing if index < transfer.chunks}) or range(transfer.chunks)
    pieces = pieces_of(transfer, body, state.settings.limits.max_payload_bytes, wanted)
    return [Publish(topic(state, gateway, "chunk", transfer.digest), piece) for piece in pieces]


def manifest(state: State, current: Manifest, gateway: str = ALL) -> Publish:
    """Return the announcement of a model, retained, and signed for those whom it is for."""
    for_whom = audience_of(state.settings.aggregator.site, gateway)
    signed = signatures.signed(current, state.key, for_whom, state.now_ns)
    return Publish(topic(state, gateway, "manifest", "current"), signed.to_bytes(), retain=True)


def retract(state: State, gateway: str) -> Publish:
    """Return what ends the announcement to one gateway: what all are told holds for it too."""
    return Publish(topic(state, gateway, "manifest", "current"), b"", retain=True)


def announce(state: State, made: BuiltModel, gateway: str = ALL) -> list[Effect]:
    """Return the announcement of a model and its chunks."""
    return [manifest(state, made.manifest, gateway), *chunks(state, gateway, Parcel(made.manifest.model, made.body))]


def keys(state: State) -> list[Publish]:
    """Return the announcement of the keys that the site goes by, retained: it goes before all that they sign."""
    return [Publish(topic(state, ALL, "keys", "current"), state.keys, retain=True)] if state.keys else []


def known(state: State) -> list[Effect]:
    """Return the announcements that hold now, for a broker that may have lost them; without the models themselves."""
    effects: list[Effect] = [] if state.manifest is None else [manifest(state, state.manifest)]
    alone = ((name, state.staging.of(name)) for name in state.staging.recipients)
    return [*effects, *(manifest(state, made.manifest, name) for name, made in alone if made is not None)]


def send_due_chunks(state: State, gateway: str, digest: str, missing: tuple[int, ...]) -> tuple[State, list[Effect]]:
    """Return the chunks a gateway asks for, of a model or of the shared parameters; raises `MessageError`.

    A question of 20 bytes may ask for megabytes, on a line that all share. So a gateway gets `BODIES` bodies as it
    asks, and from then on one each `BODY_S`.
    """
    parcel = _parcel(state, gateway, digest)
    effects = chunks(state, gateway, parcel, missing)
    asked = len(effects) / parcel.transfer.chunks * min(len(parcel.body) / WHOLE_BYTES, 1.0)
    before = state.fetched.get(gateway, Spent()).after(state.now_ns, BODY_S)
    if before + asked > BODIES:
        raise MessageError(f"{gateway} asks for more than {BODIES} bodies, and more than one in {BODY_S:g} s")
    return replace(state, fetched={**state.fetched, gateway: Spent(before + asked, state.now_ns)}), [*effects]


def _parcel(state: State, gateway: str, digest: str) -> Parcel:
    everywhere = None if state.manifest is None else BuiltModel(state.manifest, state.model)
    for made in (everywhere, state.staging.of(gateway)):
        if made is not None and digest == made.manifest.model.digest:
            return Parcel(made.manifest.model, made.body)
    if state.shared is not None and digest == state.shared.transfer.digest:
        return state.shared
    raise MessageError(f"{gateway} asks for {digest[:12]}, which is neither the model nor the shared parameters")
