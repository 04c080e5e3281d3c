"""The two walks through both services, module by module, as `docs/architecture.md` shows them;
`python -m tests.support.walks` prints them anew.

Method: two real gateway services and the real aggregator service, each on its own store, with nothing between them but
a queue of messages, run under a profiler. A module arrives in a walk with the first of its functions that runs; what
only defines records never does. Messages are carried by hand, so the MQTT link and the processes are left out.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from fedgate.cloud_aggregator import events as cloud_events
from fedgate.cloud_aggregator.runtime.service import Service as CloudService
from fedgate.cloud_aggregator.storage.store import Store as CloudStore
from fedgate.config.identity.signing import verify
from fedgate.config.protocol import topics
from fedgate.gateway_agent import events
from fedgate.gateway_agent.runtime import training_worker
from fedgate.gateway_agent.runtime.service import Service
from fedgate.gateway_agent.state import Host
from fedgate.gateway_agent.storage.store import Store
from fedgate.models.time_units import NS
from tests.support.sites import (
    KEY,
    T0_NS,
    WINDOWS,
    aggregator_settings,
    faults,
    frame,
    gateway_settings,
    samples,
    topic,
)
from tests.support.syntax import PACKAGES, ROOT

NAMES = ("north", "south")
SAMPLE, UPDATE = "A sample to an alarm, and back to its receipt", "An update to a model in force"
UP = {"status", "update", "alarm", "evidence", "want", "newest"}
PAGE = ROOT / "docs" / "architecture.md"
PARTICULARS = re.compile(r"[:;] | \(")
Call = tuple[str, str]  # file and function


@dataclass
class Walk:
    """What ran: files in order of arrival, and which function of one file called which of another."""

    files: list[str] = field(default_factory=list)
    crossings: set[tuple[Call, Call]] = field(default_factory=set)

    @property
    def returns(self) -> int:
        """Crossings into a file that had been in the walk before."""
        return len(self.crossings) - max(len(self.files) - 1, 0)


def _file_of(running: FrameType) -> str:
    path = running.f_code.co_filename
    for package in PACKAGES[:4]:
        if (start := path.rfind(f"/{package}/")) >= 0 and path.startswith(str(ROOT)):
            return path[start + 1 :]
    return ""


@contextmanager
def traced() -> Iterator[Walk]:
    """Record a walk."""
    walk = Walk()

    def saw(running: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or running.f_code.co_name == "<module>" or not (file := _file_of(running)):
            return
        if file not in walk.files:
            walk.files.append(file)
        above = running.f_back
        while above is not None and not _file_of(above):
            above = above.f_back
        if above is not None and (caller := _file_of(above)) != file:
            walk.crossings.add(((caller, above.f_code.co_name), (file, running.f_code.co_name)))

    sys.setprofile(saw)
    try:
        yield walk
    finally:
        sys.setprofile(None)


class Loop:
    """Two gateways and their aggregator, and what is on its way between them."""

    def __init__(self, folder: Path) -> None:
        self.now_ns, self.way, self.jobs = T0_NS, deque[tuple[str, str, bytes]](), deque[tuple[str, bytes]]()
        settings = {"components": 64, "gamma": 0.02, "loss": "logistic", "rounds": 1}
        algorithm = {"name": "fedavg", "seed": 5, "settings": settings}
        given = aggregator_settings(algorithm=algorithm, rounds={"quorum": len(NAMES), "rest_s": 1e6})
        self.cloud = CloudService(
            given, CloudStore(folder / "cloud.db"), KEY, uptime_ns=T0_NS, anchor_ns=0, beginning="first"
        )
        self.gateways = {name: self._gateway(name, folder) for name in NAMES}
        for name in NAMES:
            self.feed(name, events.Connection(True))
        self._carry_out("cloud", self.cloud.step(self.now_ns, cloud_events.Connection(True)))

    def _gateway(self, name: str, folder: Path) -> Service:
        seed = bytes(range(32))
        return Service(
            gateway_settings(name),
            Store(folder / f"{name}.db"),
            Host(
                boot_id="boot",
                uptime_ns=T0_NS,
                verified=partial(verify, KEY.public_key()),
                random_bytes=lambda: seed,
                clock="synchronised",
                can_train=True,
                labelled=faults(),
            ),
        )

    def feed(self, name: str, event: events.Event) -> None:
        self._carry_out(name, self.gateways[name].step(self.now_ns, event))

    def _carry_out(self, _who: str, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, events.Train):
                self.jobs.append((_who, effect.job))
            elif isinstance(effect, events.Publish | cloud_events.Publish):
                where = topics.parse(effect.topic)
                if where.channel in UP and _who != "cloud":
                    self.way.append(("cloud", effect.topic, effect.payload))
                elif _who == "cloud":
                    to = [name for name in NAMES if where.gateway in (name, topics.ALL)]
                    self.way += [(name, effect.topic, effect.payload) for name in to]

    def run(self) -> None:
        """Carry what is on its way, and train, until nothing is left."""
        while self.way or self.jobs:
            if self.way:
                to, where, payload = self.way.popleft()
                if to == "cloud":
                    said = self.cloud.step(self.now_ns, cloud_events.Received(where, payload))
                    self._carry_out(to, said)
                else:
                    self.feed(to, events.Received(where, payload))
            else:
                who, job = self.jobs.popleft()
                self.feed(who, events.Trained(training_worker.answer(job)))

    def tick(self) -> None:
        """Let a second pass for all: what it makes due is in a walk, and not how that is looked for."""
        self.now_ns += NS
        profile = sys.getprofile()
        sys.setprofile(None)
        for name in NAMES:
            self.feed(name, events.Tick("synchronised", 0, 0))
        self._carry_out("cloud", self.cloud.step(self.now_ns, cloud_events.Tick()))
        sys.setprofile(profile)
        self.run()

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(120):
            if done():
                return
            self.tick()
        raise AssertionError("the walk does not come to its end")


def walks() -> dict[str, Walk]:
    """Return both walks by their titles."""
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Path(folder))
        loop.run()
        for seed, name in enumerate(NAMES):
            for begin in range(0, WINDOWS, 10):
                loop.now_ns = T0_NS + (begin + 10) * NS
                given = frame(samples(seed * WINDOWS + begin, 10), float(begin))
                loop.feed(name, events.Received(topic(name, "sample", "deck"), given))
        with traced() as update:
            loop.until(lambda: all(one.state.deployment.manifest is not None for one in loop.gateways.values()))
        north = loop.gateways["north"]
        given = frame(samples(99, 10, 20.0), float(WINDOWS))
        loop.now_ns = max(loop.now_ns, T0_NS + (WINDOWS + 10) * NS)
        with traced() as sample:
            loop.feed("north", events.Received(topic("north", "sample", "deck"), given))
            assert any(item.topic.endswith("anomaly") for item in north.state.outbox.items.values())
            loop.run()
        assert not north.state.outbox.items
        for one in loop.gateways.values():
            one.close()
        loop.cloud.close()
    return {SAMPLE: sample, UPDATE: update}


def phrase_of(file: str) -> str:
    """Return what the first sentence of a module's docstring says before it goes into particulars."""
    text = " ".join((ast.get_docstring(ast.parse((ROOT / file).read_text("utf-8"))) or "").partition("\n\n")[0].split())
    sentence = re.split(r"(?<! al)\.\s", text)[0].rstrip(".").removesuffix(" (ours)")
    short = PARTICULARS.split(sentence)[0]
    return short if len(short.split()) > 1 else sentence


def lines(title: str, walk: Walk) -> list[str]:
    """Return what the page says of a walk; a folder is named where it is entered."""
    head = (
        f"{len(walk.files)} modules, {len(walk.crossings)} calls from one into another, {walk.returns} of them returns."
    )
    shown = [f"### {title}", "", head, "", "| folder | module | what it is |", "|---|---|---|"]
    for before, file in pairwise(["", *walk.files]):
        folder = Path(file).parent
        entered = "" if folder == Path(before).parent else f"`{folder}/`"
        shown.append(f"| {entered} | `{Path(file).stem}` | {phrase_of(file)} |")
    return shown


if __name__ == "__main__":
    for given_title, given_walk in walks().items():
        print("\n".join(lines(given_title, given_walk)), end="\n\n")
