"""What a simulated world promises of raw samples: they come where both sides allow it, as they were sent, or a refusal.

Each order that was answered as done left a request, and each request ends in a clip or in the reason why there is none.
A clip holds frames that a node of that gateway sent, around an alarm that the gateway raised; none leaves that nobody
asked for, or whose gateway keeps none. A hostile gateway's clips are its own: they end no request of another's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from fedgate.cloud_aggregator import events
from fedgate.cloud_aggregator.samples.clip_files import write_csv
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.frames import Frame
from fedgate.config.protocol.messages import Alarm
from fedgate.config.protocol.samples import Clip, decode_clip, is_clip, name_clip, name_refusal
from fedgate.config.protocol.transfer import digest_of
from fedgate.firmware_sim.recordings import Recording
from fedgate.firmware_sim.replay.node import frames
from fedgate.firmware_sim.world.environment.setup import FRAME_S
from fedgate.firmware_sim.world.environment.time import T0_NS
from fedgate.firmware_sim.world.promises.alarms.states import Key

GIVEN_UP = ("no answer within", "the gateway was removed")  # what the aggregator says by itself


class Fetches:
    """The raw samples of a world that operators asked for."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self.hostile = ""
        self._recordings: dict[str, list[Recording]] = {}  # by gateway: that its nodes send
        self._sent: dict[str, frozenset[bytes]] = {}  # by gateway: the samples of each of their frames
        self._keeping: set[str] = set()  # gateways that keep samples
        self._orders: dict[int, Key] = {}
        self._refused: set[tuple[str, str]] = set()  # by a gateway: its name and the item
        self._asked: set[Key] = set()  # without an answer
        self.numbers: dict[Key, int] = {}  # of the last request
        self.here: set[tuple[str, str]] = set()  # gateways and items that were stored
        self._items: set[tuple[str, str]] = set()  # gateways and items that were ever asked for
        self._rows: dict[Key, tuple[bool, str | None]] = {}  # as they are to be in the store: answered, digest
        self.counts = {"fetches": 0, "clips": 0, "clips_refused": 0}

    def know(self, gateway: str, recording: Recording, *, keeps: bool) -> None:
        """Take note of what a node of a gateway sends, and of whether the gateway keeps samples."""
        self._recordings.setdefault(gateway, []).append(recording)
        self._keeping |= {gateway} if keeps else set()

    def ordered(self, number: int, key: Key) -> None:
        """Take note of an order that lies in the aggregator's store."""
        self._orders[number] = key

    @property
    def missing(self) -> list[Key]:
        """The requests that have no answer."""
        return sorted(key for key in self._asked if key.gateway != self.hostile)

    def committed(self, effects: Sequence[Any], find_alarms: Callable[[Key], Collection[Alarm]]) -> None:
        """Take note of what the store holds from now on; `find_alarms` returns what a gateway said under a name."""
        done = {one.number for one in effects if isinstance(one, events.Answered) and one.text != "refused"}
        ordered = {self._orders[number] for number in done & self._orders.keys()}
        recorded = {Key(one.gateway, one.alarm) for one in effects if isinstance(one, events.RecordFetch)}
        for key in sorted(ordered ^ recorded):
            self._violate(f"samples of {'/'.join(key)} are {'not ' * (key in ordered)}asked for, against its order")
        for effect in effects:
            match effect:
                case events.RecordFetch(gateway=gateway, alarm=alarm, number=number):
                    key = Key(gateway, alarm)
                    self._asked.add(key)
                    self.numbers[key] = number
                    self._items.add((gateway, name_clip(alarm, number)))
                    self._rows[key] = (False, None)
                    self.counts["fetches"] += 1
                case events.RecordFetched(gateway=gateway, alarm=alarm):
                    self._answer(Key(gateway, alarm), effect, find_alarms)

    def _answer(self, key: Key, fetched: events.RecordFetched, find_alarms: Callable[[Key], Collection[Alarm]]) -> None:
        body = fetched.body
        if key not in self._asked:
            self._violate(f"samples of {'/'.join(key)} are answered, and nobody waits for them")
            return
        self._asked.discard(key)
        self._rows[key] = (True, None if body is None else digest_of(body))
        self.here |= set() if body is None else {(key.gateway, name_clip(key.alarm, self.numbers[key]))}
        if key.gateway == self.hostile:
            return
        self.counts["clips_refused" if body is None else "clips"] += 1
        is_refused = (key.gateway, name_refusal(key.alarm, self.numbers[key])) in self._refused
        if body is None and not is_refused and not fetched.problem.startswith(GIVEN_UP):
            self._violate(f"samples of {'/'.join(key)} do not come: {fetched.problem}, and the gateway never said so")
        if body is not None:
            self._compare_samples(key, decode_clip(body, len(body)), find_alarms(key))

    def _compare_samples(self, key: Key, clip: Clip, alarms: Collection[Alarm]) -> None:
        name, meta = "/".join(key), clip.meta
        if key.gateway not in self._keeping:
            self._violate(f"samples of {name} came, whose gateway keeps none")
        if Key(meta.gateway, meta.alarm) != key or meta.t_ns not in {
            one.t_ns for one in alarms if one.state == "raised"
        }:
            self._violate(
                f"the clip of {name} is of {meta.gateway}/{meta.alarm} at {meta.t_ns}, the gateway had {alarms}"
            )
        known = self._find_sent(key.gateway)
        for piece in clip.pieces[0]:
            if piece.values.tobytes() not in known:
                self._violate(f"the clip of {name} has samples at {piece.t_ns} that no node sent")

    def _find_sent(self, gateway: str) -> frozenset[bytes]:
        if gateway not in self._sent:
            made = [frame for one in self._recordings[gateway] for _, frame in frames(one, FRAME_S, T0_NS, "node")]
            self._sent[gateway] = frozenset(Frame.from_bytes(frame.to_bytes()).values.tobytes() for frame in made)
        return self._sent[gateway]

    def publish(self, gateway: str, item: str) -> None:
        """See that no samples leave a gateway that keeps none, or that nobody asks; take note of what it refuses."""
        if not is_clip(item):
            self._refused.add((gateway, item))
        if is_clip(item) and gateway not in self._keeping:
            self._violate(f"{gateway} sends samples, and its settings keep none")
        if is_clip(item) and (gateway, item) not in self._items:
            self._violate(f"{gateway} sends samples that nobody asked for")

    def opened(self, store: Store) -> None:
        """See that a restart finds the requests and the clips as they were."""
        rows = store.read_rows("samples", "gateway", "alarm", "received_ns", "digest")
        found = {Key(row["gateway"], row["alarm"]): (row["received_ns"] is not None, row["digest"]) for row in rows}
        for key in sorted(key for key in found.keys() | self._rows if found.get(key) != self._rows.get(key)):
            self._violate(f"samples of {'/'.join(key)} are {found.get(key)} in the store, not {self._rows.get(key)}")

    def audit(self, store: Store) -> dict[str, int]:
        """See in the end that the store holds what came, and that an operator can export it whosever it is."""
        self.opened(store)
        for key, (_, digest) in self._rows.items():
            body = None if digest is None else store.read_samples(*key)
            if body is not None:
                clip = decode_clip(body, len(body))
                for source, pieces in zip(clip.meta.sources, clip.pieces, strict=True):
                    write_csv(source, pieces)
        return self.counts
