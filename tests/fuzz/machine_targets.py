"""Random bytes on every topic of both machines, and random updates before every algorithm.

The machines take no declared error: whatever a topic or payload is, a step gives a state and effects, and the next
tick works. The gateway believes every signature here, so that what lies behind one is reached too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from fedgate.cloud_aggregator import events as cloud_events
from fedgate.cloud_aggregator import machine as cloud_machine
from fedgate.cloud_aggregator.state import State as CloudState
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Alarm, Receipt, RoundOpen, Status, Want
from fedgate.config.protocol.topics import CHANNELS, topic_of
from fedgate.config.protocol.topics import Topic as Where
from fedgate.config.protocol.transfer import describe, split
from fedgate.firmware_sim.mutation import resealed
from fedgate.gateway_agent import events, machine
from fedgate.gateway_agent.state import State
from fedgate.models.arrays import Arrays
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.protocol.algorithm import RoundFailedError, Server
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.secure_aggregation.options import LeftOutWarning
from fedgate.models.testing.exchanges import Exchange, exchanges_of
from fedgate.models.testing.fleet import FEATURE_COUNT, fleet
from tests.fuzz.target import Target
from tests.gateway_agent.deployment.test_gateway_models import FIRST, SECOND, in_force
from tests.support.agents import changed
from tests.support.message_samples import MESSAGES
from tests.support.sites import SITE, Shelf, Site, agent, aggregator_settings, frame, gateway_settings, samples

NAME = "north"
BIG = 64 * 1024
ORDER = tuple(sorted(CHANNELS))  # the first byte of an input says on which channel it comes
READING = {
    "name": "air",
    "kind": "json",
    "topic": "air",
    "channels": ({"role": "load", "path": "v"},),
    "time_path": "t",
}
FAST: dict[
    str, dict[str, Any]
] = {  # settings that keep one exchange of each algorithm small, where its own default is not
    "esn-fedavg": {"network": {"task": "classify", "units": 8, "washout": 2}},
    "esn-fedcurv": {"network": {"task": "classify", "units": 8, "washout": 2}},
    "incfed": {"network": {"units": 8, "washout": 2}},
    "partial-incfed": {"network": {"units": 8, "washout": 2}},
}
MASKED: dict[str, Any] = {"loss": "logistic", "components": 0, "masking": {"fewest": 3}}


@cache
def _site() -> Site:
    """Return a site of three gateways with a round open, and what everyone sent on the way there."""
    made = Site(aggregator_settings(rounds={"quorum": 3}), [gateway_settings(name) for name in ("east", NAME, "west")])
    made.connect_all()
    made.commission()
    return made


@cache
def _agents() -> tuple[State, ...]:
    """Return gateways at three stages: with a model in force, invited to a round, and with a sensor that says JSON."""
    open_round = next(message for message in MESSAGES if isinstance(message, RoundOpen))
    shared = wire.encode({"w": frame_shape()})
    invited = open_round.model_copy(update={"shared": describe(shared, BIG), "features": gateway_settings().features})
    watching = changed(in_force(), "context", verified=lambda _message, _signature: True)
    asked, _ = machine.step(
        watching, watching.context.now_ns, events.Received(_topic("all", "round", "open"), invited.to_bytes())
    )
    return watching, asked, _reading_json()


def _reading_json() -> State:
    """Return a gateway whose sensor says JSON."""
    return agent(gateway_settings(NAME, source=[READING]), Shelf())


def frame_shape() -> Any:
    """Return what stands for shared parameters: any array will do."""
    return samples(0, 1)


def _topic(gateway: str, channel: str, item: str = "x") -> str:
    return topic_of(Where(SITE, gateway, channel, item))


def _gateway(data: bytes) -> None:
    stage, channel, payload = _parted(data)
    state = _agents()[stage % len(_agents())]
    where = "air" if channel >= len(ORDER) else _topic(("all", NAME)[stage // 128], ORDER[channel], "deck")
    for body in (payload, resealed(payload)):
        after, effects = machine.step(state, state.context.uptime_ns, events.Received(where, body))
        machine.step(after, after.context.uptime_ns + 10**9, events.Tick("synchronised", 0, 0))
        assert isinstance(effects, list)


def _gateway_topic(data: bytes) -> None:
    state = _agents()[0]
    machine.step(state, state.context.uptime_ns, events.Received(data.decode(errors="replace"), data))


def _parted(data: bytes) -> tuple[int, int, bytes]:
    head = data[:2].ljust(2, b"\0")
    return head[0], head[1] % (len(ORDER) + 2), data[2:]


def _on(channel: str, *payloads: bytes, stages: tuple[int, ...] = (0, 1, 128, 129)) -> list[bytes]:
    return [bytes([stage, ORDER.index(channel)]) + payload for stage in stages for payload in payloads]


def _gateway_seeds() -> tuple[bytes, ...]:
    open_round = _agents()[1].training.round
    assert open_round is not None
    manifest, model = SECOND
    return (
        *_on("round", open_round.to_bytes(), b""),
        *_on("manifest", manifest.to_bytes(), FIRST[0].to_bytes()),
        *_on("chunk", *split(model, BIG), *split(wire.encode({"w": frame_shape()}), BIG)),
        *_on("receipt", Receipt(accepted=True).to_bytes(), Receipt(accepted=False, reason="no").to_bytes()),
        *_on("resend", Want(missing=(0, 1)).to_bytes()),
        *_on("sample", frame(samples(0, 2)), frame(samples(0, 1), clock="boot", boot="b"), stages=(128, 129)),
        bytes([2, len(ORDER)]) + b'{"v":1.5,"t":1800000000}',
    )


def _cloud(data: bytes) -> None:
    stage, channel, payload = _parted(data)
    state = _cloud_state()
    body = payload
    if stage % 2:  # a whole update of this round, whatever is in it
        meta = {
            "run": state.rounds.run,
            "round_index": state.rounds.server.round_index,
            "phase": state.rounds.server.phase,
        }
        body = split(_labelled(payload, meta), BIG)[0]
    where = _topic(("all", NAME, "stranger")[stage % 3], ORDER[channel % len(ORDER)])
    after, effects = cloud_machine.step(state, state.context.uptime_ns, cloud_events.Received(where, body))
    cloud_machine.step(after, after.context.uptime_ns + 10**9, cloud_events.Tick())
    assert isinstance(effects, list)


def _cloud_state() -> CloudState:
    return _site().cloud


def _labelled(payload: bytes, meta: dict[str, Any]) -> bytes:
    """Return an update under the name of the present round, where it is one at all."""
    try:
        arrays, _ = wire.decode(resealed(payload))
        return wire.encode(arrays, meta)
    except wire.WireError:
        return payload[: BIG // 2]


def _cloud_seeds() -> tuple[bytes, ...]:
    site = _site()
    sent = [payload for who, where, payload in site.on_the_way if who == "cloud" and "/update/" in where]
    status = next(message for message in MESSAGES if isinstance(message, Status)).to_bytes()
    alarm = next(message for message in MESSAGES if isinstance(message, Alarm)).to_bytes()
    update = wire.encode(_update())
    return (
        *_on("update", update, *sent[:1], *split(update, BIG), stages=(1, 4, 7)),
        *_on("status", status, stages=(2, 4)),
        *_on("alarm", alarm, stages=(2, 4)),
        *_on("want", Want(missing=(0, 3)).to_bytes(), stages=(2, 4)),
    )


@cache
def _update() -> Arrays:
    algorithm = _cloud_state().rounds.algorithm
    return next(iter(_first_exchange(algorithm).sent))


def _first_exchange(algorithm: Any) -> Exchange:
    labelled = bool(algorithm.labels)
    data = {name: gateway.data for name, gateway in fleet(0, labelled=labelled, rows=40).items()}
    return next(exchanges_of(algorithm, data))


def _admitting(name: str, settings: dict[str, Any]) -> Target:
    """Return the target of the first exchange of an algorithm: what it admits can be merged and closed."""
    algorithm = build(name, FEATURE_COUNT, settings)
    exchange = _first_exchange(algorithm)
    server, phase = exchange.server, exchange.phase

    def take(data: bytes) -> None:
        arrays, _ = wire.decode(resealed(data))
        admitted = phase.admit(server, arrays)
        total = Arrays()
        for update in (admitted, *exchange.sent[2:]):
            total = phase.reducer.merge(total, update)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeftOutWarning)  # its word for gateways that said the same
            advanced = phase.advance(server, phase.reducer.closed(total))
        assert isinstance(advanced, Server)

    seeds = tuple(wire.encode(update) for update in exchange.sent[:2])
    return Target(take, (wire.WireError, UpdateError, RoundFailedError), seeds, examples=60)


def targets() -> dict[str, Callable[[], Target]]:
    """Return the targets of this file by name, to be built when they are asked for: a site takes its time to build."""
    plain = [name for name in ALGORITHMS if name != "recurrent-fedavg"]  # which wants torch
    return {
        "machine-gateway": lambda: Target(_gateway, (), _gateway_seeds(), examples=400),
        "machine-gateway-topics": lambda: Target(_gateway_topic, (), (_topic(NAME, "chunk").encode(),)),
        "machine-aggregator": lambda: Target(_cloud, (), _cloud_seeds(), examples=400),
        "update-masked": lambda: _admitting("fedavg", MASKED),
        **{f"update-{name}": partial(_admitting, name, FAST.get(name, {})) for name in plain},
    }
