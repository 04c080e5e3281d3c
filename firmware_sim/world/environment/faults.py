"""What may go wrong in a simulated world, and how often: a file that an operator can write, or a mix drawn from a seed.

Rates are per hour and per thing that can fail (each machine has its own power, each link its own line); chances are per
message. All zero is a world in which nothing fails.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from fedgate.config.settings.base import Table
from fedgate.config.settings.problems import list_problems
from fedgate.config.settings.settings import ENCODING, SettingsError

Chance = Annotated[float, Field(ge=0, le=0.9)]
Rate = Annotated[float, Field(ge=0, le=3_600)]  # per hour
Seconds = Annotated[float, Field(gt=0, le=1e6)]
NO_MEMORY = "no memory"  # what a training that fails says
HOSTILE, LYING = 0.25, 0.1  # shares of the worlds with a hostile gateway, and with a broker that lies
HOSTILE_MESSAGES = (100.0, 2_000.0)  # per hour
ANEW = 0.15  # share of the worlds in which somebody has a gateway begin anew
HANDLED = 0.5  # share of the worlds in which somebody sees to alarms
HANDLED_ORDERS = (20.0, 240.0)  # per hour
ACTING, ACTED = 0.5, 0.5  # share of these worlds in which others act, too, and of the rate of orders at which they do
FETCHING, FETCHES = 0.5, (20.0, 120.0)  # share of the worlds in which somebody asks for samples, and how often per hour
UNLUCKY = 0.2  # share of the worlds in which processes end as they load models
CALM_SHARE = 0.35  # of the kinds of faults, in a drawn mix, that do not happen at all: so others are seen alone


class Messages(Table):
    """What becomes of one message on its way."""

    loss: Chance = 0.0
    repeat: Chance = 0.0
    damage: Chance = 0.0  # a byte of a chunk, as from a broker whose database was damaged
    delay_s: Annotated[float, Field(ge=0, le=3_600)] = 0.2  # on average; those of one sender may overtake one another
    frame_loss: Chance = 0.0  # between a sensor node and its gateway
    frame_repeat: Chance = 0.0


class Line(Table):
    """The connection of each machine to the broker."""

    partitions: Rate = 0.0
    partition_s: Seconds = 120.0


class Capacity(Table):
    """What a line carries."""

    bytes_per_s: Annotated[float, Field(ge=0)] = 0.0  # to the broker; 0: whatever it is given
    word_s: Seconds = 0.1  # until the broker's word for a message that has left is back


class BrokerFaults(Table):
    """The broker between them."""

    restarts: Rate = 0.0
    away_s: Seconds = 20.0
    memory: Literal["whole", "snapshot", "empty", "any"] = "any"  # what a restart finds of sessions and retained
    queue_max: Annotated[int, Field(ge=1)] = 1_000  # messages for a client that is away
    full_queue_drops: Literal["newest", "oldest"] = "newest"


class Power(Table):
    """Each machine: its power, its process, its disk and its clock."""

    cuts: Rate = 0.0
    kills: Rate = 0.0  # of the process: what the system holds of its files is not lost
    stops: Rate = 0.0  # as by an operator: the process may say goodbye
    away_s: Seconds = 60.0
    torn: Chance = 0.5  # share of cuts, where they hit a commit, that leave any part of what was being written
    checkpoint: Chance = 0.3  # share of cuts that hit a checkpoint: some pages of the file are new, some old
    disk_full: Rate = 0.0
    disk_full_s: Seconds = 120.0
    no_clock: Chance = 0.0  # share of boots in 1970, until the network tells the time
    stale_clock: Chance = 0.0  # share of boots at the time of the last power cut
    clock_steps: Rate = 0.0  # of the wall clock, by up to `step_s` either way
    step_s: Annotated[float, Field(gt=0, le=1e9)] = 3 * 7 * 86_400.0
    synchronised_after_s: Seconds = 240.0  # of an unbroken connection


class Work(Table):
    """What happens to the structure, the sensors and the training."""

    damage: Rate = 6.0
    damage_s: Seconds = 60.0
    silence: Rate = 0.0  # of a sensor node, which comes back as one that was started anew
    silence_s: Seconds = 300.0
    training_fails: Chance = 0.0


class Processor(Table):
    """The processor of each gateway."""

    slow: Rate = 0.0
    slow_s: Seconds = 300.0
    takes_s: Seconds = 60.0  # at most, for what takes no time at all otherwise: a message of windows, a baseline


class Handling(Table):
    """One of the gateways, as a thing in people's hands."""

    restores: Rate = 0.0  # it comes back with an image of its card from some time ago
    rots: Rate = 0.0  # it comes back with a store of which some bytes in the middle are rubbish
    anew: Rate = 0.0  # its store is removed and its agent started anew, while the machine runs on
    twins: Rate = 0.0  # a copy of it is switched on beside it, under the same id
    twin_s: Seconds = 600.0


class Orders(Table):
    """What the operator does meanwhile."""

    orders: Rate = 0.0  # to release a model, to go on, to pause, to stop


class OfAlarms(Table):
    """What an operator does about alarms, and what happens to them; where there is one, the site has a webhook, too."""

    orders: Rate = 0.0  # to acknowledge, shelve, label, to announce maintenance, and some that are to be refused
    actions: Rate = 0.0  # of other systems, over MQTT; one of them may
    receiver_fails: Chance = 0.0  # share of the posts that the webhook's receiver does not take
    cuts: Chance = (
        0.0  # share of the anomalies with evidence at the next chance after which the gateway loses its power
    )


class OfSamples(Table):
    """What an operator wants to see of raw samples; where there is one, the site allows it and so do most gateways."""

    fetches: Rate = 0.0


class Hostile(Table):
    """One gateway more, with a certificate of its own, that says whatever the broker lets it say."""

    messages: Rate = 0.0  # whatever else is over; 0: there is none


class Lies(Table):
    """A broker that means harm; it cannot sign, and forges no receipt."""

    replays: Rate = 0.0  # of what it was to hand out at any time before: to whom it was for, or kept for who comes
    withholds: Rate = 0.0  # a kind of message, from all or from one
    withheld_s: Seconds = 120.0
    doubles: Chance = 0.0  # share of the messages that it hands out twice
    shows: Chance = 0.0  # share of the manifests to one gateway that it shows all, some time later


class Loads(Table):
    """What ends a gateway's process around the loads of models, of which it keeps marks: chance alone hits few."""

    ends: Chance = 0.0  # share of the marked loads soon after which the process is killed, or stopped in order


class Faults(Table):
    """F.toml of `firmware-sim world --faults F.toml`."""

    messages: Messages = Messages()
    line: Line = Line()
    broker: BrokerFaults = BrokerFaults()
    power: Power = Power()
    work: Work = Work()
    handling: Handling = Handling()
    processor: Processor = Processor()
    operator: Orders = Orders()
    alarms: OfAlarms = OfAlarms()
    samples: OfSamples = OfSamples()
    capacity: Capacity = Capacity()
    hostile: Hostile = Hostile()
    lies: Lies = Lies()
    loads: Loads = Loads()


def load_faults(path: Path) -> Faults:
    """Return the faults in a TOML file; raises `SettingsError` with file, line, key and what was expected."""
    try:
        text = path.read_text(encoding=ENCODING)
        raw = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read as TOML ({error})") from None
    try:
        return Faults.model_validate(raw)
    except ValidationError as error:
        raise SettingsError("\n".join(f"{path}:{problem}" for problem in list_problems(text, error, Faults))) from None


def drawn(rng: np.random.Generator) -> Faults:
    """Return a mix: each kind of fault with a chance, from rare to frequent, so that no two seeds are alike."""

    def some(most: float, least: float = 0.0) -> float:
        happens, share = rng.random() >= CALM_SHARE, rng.random()
        return round(least + (most - least) * share**2, 4) if happens else 0.0

    def length(least: float, most: float) -> float:
        return round(least * float((most / least) ** rng.random()), 1)

    memories: tuple[Literal["whole", "snapshot", "empty"], ...] = ("whole", "snapshot", "empty")
    drops: tuple[Literal["newest", "oldest"], ...] = ("newest", "oldest")
    return Faults(
        messages=Messages(
            loss=some(0.35),
            repeat=some(0.35),
            damage=some(0.1),
            delay_s=length(0.05, 30.0),
            frame_loss=some(0.1),
            frame_repeat=some(0.2),
        ),
        line=Line(partitions=some(20.0), partition_s=length(10.0, 1_200.0)),
        broker=BrokerFaults(
            restarts=some(20.0),
            away_s=length(2.0, 300.0),
            memory=memories[int(rng.integers(len(memories)))],
            queue_max=round(length(2.0, 1_000.0)),
            full_queue_drops=drops[int(rng.integers(len(drops)))],
        ),
        power=Power(
            cuts=some(60.0),
            kills=some(30.0),
            stops=some(10.0),
            away_s=length(2.0, 600.0),
            torn=rng.random() * 0.9,
            checkpoint=rng.random() * 0.9,
            disk_full=some(8.0),
            disk_full_s=length(20.0, 600.0),
            no_clock=some(0.9),
            stale_clock=some(0.9),
            clock_steps=some(8.0),
            step_s=length(10.0, 3 * 7 * 86_400.0),
            synchronised_after_s=length(10.0, 1_200.0),
        ),
        work=_drawn_work(some, length),
        handling=Handling(restores=some(10.0), rots=some(10.0), twins=some(2.0), twin_s=length(300.0, 1_500.0)),
        processor=Processor(slow=some(40.0), slow_s=length(200.0, 1_500.0), takes_s=length(40.0, 400.0)),
        operator=Orders(orders=some(60.0)),
        capacity=_drawn_capacity(rng, length),
    )


def hostile_of(rng: np.random.Generator) -> Hostile:
    """Return how often a hostile gateway speaks in a world; in most there is none."""
    is_there, share = rng.random() < HOSTILE, rng.random()
    least, most = HOSTILE_MESSAGES
    return Hostile(messages=round(least * float((most / least) ** share), 1) if is_there else 0.0)


def lies_of(rng: np.random.Generator) -> Lies:
    """Return how a broker lies in a world; in most it does not."""
    is_there, shares, withheld, shows = rng.random() < LYING, rng.random(3), rng.random(), rng.random()
    if not is_there:
        return Lies()
    replays, withholds = (60.0 * share**2 for share in shares[:2])
    return Lies(
        replays=round(replays, 4),
        withholds=round(withholds, 4),
        withheld_s=round(10.0 * 60.0**withheld, 1),
        doubles=round(0.5 * float(shares[2]), 4),
        shows=round(0.9 * shows, 4),
    )


def anew_of(rng: np.random.Generator) -> float:
    """Return how often per hour a gateway is made to begin anew in a world; in most never."""
    is_there, share = rng.random() < ANEW, rng.random()
    return round(30.0 * share, 4) if is_there else 0.0


def alarms_of(rng: np.random.Generator) -> OfAlarms:
    """Return what is done about alarms in a world, and what happens to them; in half of them nothing."""
    is_there, share, fails, cuts, acts = rng.random(5)
    least, most = HANDLED_ORDERS
    if is_there >= HANDLED:
        return OfAlarms()
    orders = round(least * float((most / least) ** share), 1)
    actions = round(ACTED * orders, 1) if acts < ACTING else 0.0
    return OfAlarms(orders=orders, actions=actions, receiver_fails=round(0.6 * fails**2, 4), cuts=round(0.8 * cuts, 4))


def samples_of(rng: np.random.Generator) -> OfSamples:
    """Return how often somebody asks for raw samples in a world; in most never."""
    is_there, share = rng.random(2)
    least, most = FETCHES
    return OfSamples(fetches=round(least * float((most / least) ** share), 1) if is_there < FETCHING else 0.0)


def loads_of(rng: np.random.Generator) -> Loads:
    """Return how often processes end as they load models; in most worlds no more often than at any other time."""
    is_there, share = rng.random() < UNLUCKY, rng.random()
    return Loads(ends=round(0.8 * share, 4) if is_there else 0.0)


def _drawn_capacity(rng: np.random.Generator, length: Callable[[float, float], float]) -> Capacity:
    is_narrow, rate = rng.random() >= CALM_SHARE, length(1_000.0, 200_000.0)
    return Capacity(bytes_per_s=rate if is_narrow else 0.0, word_s=length(0.1, 3.0))


def _drawn_work(some: Callable[[float], float], length: Callable[[float, float], float]) -> Work:
    return Work(
        damage=length(4.0, 30.0),
        damage_s=length(20.0, 200.0),
        silence=some(8.0),
        silence_s=length(30.0, 600.0),
        training_fails=some(0.15),
    )
