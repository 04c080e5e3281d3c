"""A gateway of a simulated world that means harm: it has a good certificate, and says whatever the broker lets it say.

It keeps to the broker's access list and to the size of a message, and to nothing else. What it knows is what every
gateway may read. Each act is a line of the history.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from fedgate.config.protocol import wire
from fedgate.config.protocol.evidence import EVIDENCE_BYTES, AlarmEvidence, name_item
from fedgate.config.protocol.feature_summary import FeatureSummary
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Alarm, Message, Newest, Score, Status, Want
from fedgate.config.protocol.samples import name_clip, name_refusal
from fedgate.config.protocol.scores import Scores
from fedgate.config.protocol.topics import ALL, ROOT
from fedgate.config.protocol.transfer import split
from fedgate.firmware_sim.mutation import resealed
from fedgate.firmware_sim.world.actors.hosts import UNTRAINED, CloudHost
from fedgate.firmware_sim.world.actors.messages import Seen, drawn, mutated, swollen
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.faults import Hostile
from fedgate.firmware_sim.world.environment.network import PACKET_BYTES
from fedgate.firmware_sim.world.environment.setup import FEATURES, SHIFT, SITE, WINDOWS, find_published, stream_of
from fedgate.firmware_sim.world.environment.time import T0_NS
from fedgate.models.arrays import FEATURES as ROWS
from fedgate.models.arrays import LABELS, SECRET, Arrays, generator
from fedgate.models.time_units import NS

NAME = "mallory"
AT_ONCE = 25  # messages of a burst
FLAPS, FLOOD = 20, 30  # alarms, and messages of evidence, at once
BURSTS = 0.05  # share of the acts that are one
REMEMBERED = 300  # of its own messages, to be said again
CHUNK_BYTES = 8_192  # of a clip in one message
SHOWN = 140  # characters of a message in the history
AWAY_S = (1.0, 120.0)
KINDS: dict[str, type[Message]] = {
    "status": Status,
    "alarm": Alarm,
    "evidence": AlarmEvidence,
    "tombstone": Tombstone,
    "telemetry": Scores,
    "want": Want,
    "score": Score,
    "newest": Newest,
}
OF_FEATURES: dict[str, type[Message]] = {"summary": FeatureSummary}  # where gateways publish any
RETAINED = {"status", "alarm", "newest"}
ACTS = {  # how often each is drawn
    "says": 10.0,  # a message of a type, its values from anywhere within their bounds
    "claims": 8.0,  # a status that could be true, but for some of its values
    "alarms": 6.0,  # an alarm that could be true, raised, cleared or told again
    "flaps": 2.0,  # an alarm of many, each raised and cleared at once
    "impersonates": 3.0,  # an alarm by the name of one of another gateway, with evidence of it
    "floods": 2.0,  # evidence of alarms that nobody raised, some of it longer than it may be
    "answers": 8.0,  # the open round, with an update that is true, poisoned or broken
    "begins": 4.0,  # an update that never ends
    "goes on": 6.0,  # with an update, a chunk at a time
    "asks": 5.0,  # for bodies
    "breaks": 8.0,  # a message, in its bytes
    "swells": 2.0,  # a message to what the broker takes, and now and then beyond
    "repeats": 8.0,  # what it has said before
    "babbles": 3.0,  # bytes of no meaning
    "empties": 1.0,  # what it has retained
    "leaves": 1.0,  # and comes back
}
OF_SAMPLES = {"exposes": 6.0}  # where somebody asks for samples: clips, and refusals, of its alarms and of others'
ALONE = ("swells", "leaves", "flaps", "floods", "exposes")  # acts that are no part of a burst
EXTREME = (0.0, -1.0, 1e3, -1e3, 1e9, 1e30, 1e300, float("nan"), float("inf"))
ODD_ITEMS = ("agent", "x", "all", "cloud", "fleet", "a" * 64, "a" * 65, "a" * 4_000, "", " ", "ä", "\u202e")
HALF = "HALF"  # stands for half of a surrogate pair, which nothing of ours would write
ODD_META: tuple[Any, ...] = ("", HALF, "x" * 5_000, 2**63, -1, 1.5, None, [], {})


class Word(NamedTuple):
    """One message."""

    channel: str
    item: str
    payload: bytes
    retain: bool = False
    qos: int = 1


@cache
def may_write() -> dict[str, str]:
    """Return the channels of its own that a gateway may write to, and the item of each: `+` for any."""
    text = (resources.files("fedgate.config") / "mosquitto.acl").read_text(encoding="utf-8")
    return dict(re.findall(rf"^pattern (?:read)?write {'/'.join(ROOT)}/[^/]+/%u/([^/]+)/(\S+)$", text, re.MULTILINE))


class Device:
    """The device, as the broker sees it: always up, and connected as long as it is let in."""

    is_up = True

    def __init__(self, world: World, cloud: CloudHost, settings: Hostile) -> None:
        self.name, self._world, self._cloud, self._settings = NAME, world, cloud, settings
        self._rng = rng = stream_of(world.seed, "hostile")
        acts = ACTS | (OF_SAMPLES if world.network.faults.samples.fetches else {})
        shares = np.array(list(acts.values())) * rng.exponential(size=len(acts))  # each device has habits of its own
        self._names, self._shares = list(acts), shares / shares.sum()
        is_published = bool(find_published(world.seed))
        self._kinds = KINDS | (OF_FEATURES if is_published else {})
        self._channels = [name for name in may_write() if is_published or name not in OF_FEATURES]
        self._seen = Seen(["all", "east", "north", NAME])
        self._said: deque[Word] = deque(maxlen=REMEMBERED)
        self._rest: deque[bytes] = deque()  # of an update that it has begun
        self._own: Arrays = {}
        self._made: tuple[tuple[str, int, int], Arrays] | None = None  # by run, round and phase
        self._count = 0
        self._acts: dict[str, Callable[[], Sequence[Word]]] = {
            "says": self._say,
            "claims": self._claim,
            "alarms": self._alarm,
            "flaps": self._flap,
            "impersonates": self._impersonate,
            "floods": self._flood,
            "answers": self._answer,
            "begins": self._begin,
            "goes on": self._go_on,
            "asks": self._ask,
            "breaks": self._break,
            "swells": self._swell,
            "repeats": self._repeat,
            "babbles": self._babble,
            "empties": self._empty,
            "leaves": self._leave,
            "exposes": self._expose,
        }

    def will(self) -> tuple[str, bytes]:
        """Return what the broker is to say when it vanishes."""
        word = self._words(self._chosen(("status", "alarm", "want")))
        return self._topic(word), word.payload

    def receive(self, topic: str, payload: bytes) -> None:
        """Take note of what it is told."""
        line = payload.partition(b"\n")[0]  # of a chunk, what it says of itself
        self._seen.note([topic.rpartition("/")[2], json.loads(line) if line.startswith(b"{") else None])

    def linked(self, up: bool) -> None:
        """Say at once what a gateway says that has come."""
        if up:
            self._send("claims", [Word("status", "agent", self._status(), retain=True)])

    def schedule_faults(self) -> None:
        """Go on from now, whatever else fails or does not fail any more."""
        delay_s = float(self._rng.exponential(3_600.0 / self._settings.messages))
        self._world.scheduler.after(delay_s, self._act)

    def _act(self) -> None:
        self.schedule_faults()
        name = str(self._rng.choice(self._names, p=self._shares))
        for _ in range(AT_ONCE if self._rng.random() < BURSTS and name not in ALONE else 1):
            self._send(name, self._acts[name]())

    def _send(self, act: str, words: Sequence[Word]) -> None:
        network, channels = self._world.network, may_write()
        for word in words:
            if word.channel not in channels or not network.has(NAME):
                continue
            self._said.append(word)
            kind = f"{'retained, ' if word.retain else ''}{len(word.payload)} bytes"
            shown = repr(word.payload[:SHOWN])[2:-1]
            self._world.note(NAME, f"{act}: {word.channel}/{word.item[:40]!r}, {kind}: {shown}")
            network.push(NAME, self._topic(word), word.payload, retain=word.retain, qos=word.qos)

    def _topic(self, word: Word) -> str:
        return "/".join((*ROOT, SITE, NAME, word.channel, word.item))

    # What it says.

    def _chosen(self, channels: Sequence[str]) -> str:
        return str(self._rng.choice(list(channels)))

    def _words(self, channel: str, payload: bytes | None = None) -> Word:
        """Return a message on a channel, under the item that belongs to it or, where any may be, another."""
        body = json.dumps(self._drawn(channel)).encode() if payload is None else payload
        items = {
            "status": "agent",
            "score": "window",
            "newest": "current",
            "telemetry": hashlib.sha256(body).hexdigest(),
            "summary": hashlib.sha256(body).hexdigest(),
        }
        allowed, item = may_write()[channel], items.get(channel, "anomaly")
        if channel == "want":
            item = self._digest()
        if channel == "evidence" and payload is None:
            item = name_item(json.loads(body)["alarm"])
        if allowed == "+" and self._rng.random() < 0.1:
            item = ODD_ITEMS[int(self._rng.integers(len(ODD_ITEMS)))]
        is_retained = self._rng.random() < (0.7 if channel in RETAINED else 0.2)
        return Word(channel, item, body, is_retained, int(self._rng.integers(2)))

    def _drawn(self, channel: str) -> dict[str, Any]:
        fields = drawn(self._kinds[channel], self._rng, self._seen)
        if channel == "telemetry":  # what its own check wants
            count = len(fields["after_ms"])
            fields["scores"] = [(fields["scores"] or [0.0])[0]] * count
            fields["alarms"] = [number % count for number in fields.get("alarms", ())]
            rules = fields.get("rules", {}).items()
            fields["rules"] = {name: [number % count for number in numbers] for name, numbers in rules}
        if channel == "summary":  # likewise
            count = len(fields["features"])
            fields["units"] = [""] * count
            for name in ("means", "deviations", "least", "most"):
                fields[name] = [(fields[name] or [0.0])[0]] * count
            fields["last_ns"] = max(fields["t_ns"], fields["last_ns"])
        return fields

    def _digest(self) -> str:
        digests = [text for text in self._seen.texts if re.fullmatch(r"[0-9a-f]{64}", text)]
        return self._chosen(digests[-6:]) if digests else "0" * 64

    def _say(self) -> list[Word]:
        return [self._words(self._chosen(list(self._kinds)))]

    def _status(self, **claims: Any) -> bytes:
        """Return a status as of a gateway that is ready and has the model that it is to have."""
        self._count += 1
        version, _ = self._world.witness.releases.wanted(NAME)
        now_ns = self._world.scheduler.now_ns
        fields: dict[str, Any] = {
            "state": "online",
            "can_train": True,
            "baseline_windows": WINDOWS,
            "baseline_needed": WINDOWS,
        }
        fields |= {"boot_id": "m-1", "store_id": "m", "starts": 1, "sequence": self._count, "t_ns": now_ns}
        fields |= {"monotonic_ns": now_ns - T0_NS, "model_version": version, "newest_version": version}
        fields |= {"model_windows": (now_ns - T0_NS) // NS, "promised_alarms_per_day": 1.0}
        return json.dumps(fields | claims).encode()

    def _claim(self) -> list[Word]:
        found = list(drawn(Status, self._rng, self._seen).items())
        chosen = [found[int(self._rng.integers(len(found)))] for _ in range(int(self._rng.integers(16)))]
        return [Word("status", "agent", self._status(**dict(chosen)), retain=True)]

    def _alarm_fields(self, alarm: str, cause: str, **more: Any) -> dict[str, Any]:
        """Return what an alarm that could be true says, raised now."""
        self._count += 1
        now_ns = self._world.scheduler.now_ns
        fields: dict[str, Any] = {"id": alarm, "cause": cause, "kind": "anomaly", "severity": "major", "text": ""}
        fields |= {"onset_ns": now_ns, "t_ns": now_ns, "state": "raised", "boot_id": "m-1", "sequence": self._count}
        return fields | more

    def _flap(self) -> list[Word]:
        cause = self._chosen(("anomaly", "flapping"))
        names = [f"{NAME}.{cause}.flap-{self._count + place}" for place in range(FLAPS)]
        changes = [self._alarm_fields(name, cause, state=state) for name in names for state in ("raised", "cleared")]
        return [Word("alarm", cause, json.dumps(one).encode()) for one in changes]

    def _impersonate(self) -> list[Word]:
        others = [key for key in self._world.witness.log.states.alarms if key.gateway != NAME]
        if not others:
            return []
        name = others[int(self._rng.integers(len(others)))].alarm
        fields = self._alarm_fields(name, "anomaly", state=self._chosen(("raised", "cleared")))
        return [Word("alarm", "anomaly", json.dumps(fields).encode()), self._evidence_of(name)]

    def _flood(self) -> list[Word]:
        self._count += 1
        return [self._evidence_of(f"{NAME}.{self._count}.{place}") for place in range(FLOOD)]

    def _evidence_of(self, alarm: str) -> Word:
        """Return evidence of an alarm; a part of it is too long, or under the name of another's."""
        fields, kind = self._drawn("evidence") | {"alarm": alarm}, self._rng.random()
        body = json.dumps(fields).encode() if kind < 0.8 else swollen(fields, EVIDENCE_BYTES + 1, self._rng)
        return Word("evidence", name_item(alarm if kind < 0.9 else "north.anomaly.1"), body)

    def _expose(self) -> list[Word]:
        """Return a clip of an alarm, whosever it is: sound or not, whole or in part; or the refusal of one."""
        keys = [key for key in self._world.witness.log.states.alarms if key.gateway != ALL]
        if not keys:
            return []
        fetches, own = self._world.witness.fetches, [key for key in keys if key.gateway == NAME]
        chosen = (fetches.missing, own, keys)[int(self._rng.integers(3))] or keys
        key = chosen[int(self._rng.integers(len(chosen)))]
        kind, number = self._rng.random(), fetches.numbers.get(key, 0)  # as if it had guessed
        if kind < 0.2:
            refusal = {
                "alarm": key.alarm,
                "number": number,
                "reason": self._chosen(("", "no", "x" * 4_000, "\x1b[31m")),
            }
            return [Word("samples", name_refusal(key.alarm, number), json.dumps(refusal).encode())]
        body = self._make_clip(key.alarm, self._chosen((NAME, key.gateway)))
        body = mutated(body, self._rng) if kind < 0.4 else body
        chunks = split(body, CHUNK_BYTES)
        chunks = chunks[: int(self._rng.integers(1, len(chunks) + 1))] if kind < 0.6 else chunks
        return [Word("samples", name_clip(key.alarm, number), chunk) for chunk in chunks]

    def _make_clip(self, alarm: str, gateway: str) -> bytes:
        """Return a clip of one block, or of as many as a message has samples, at any times."""
        rows = int(self._rng.choice([1, 60, 2_000, 20_000]))
        count = rows if self._rng.random() < 0.5 else 1
        arrays: wire.Arrays = {
            "0.values": self._rng.normal(size=(rows, 1)).astype(np.float32),
            "0.t_ns": self._rng.integers(-(2**61), 2**61, size=count),
            "0.rate_hz": np.full(count, 2.0),
            "0.rows": np.full(count, rows // count),
        }
        now_ns = self._world.scheduler.now_ns
        source = {"name": "deck", "channels": [{"name": "load"}]}
        meta = {"gateway": gateway, "alarm": alarm, "cause": "anomaly", "onset_ns": now_ns, "t_ns": now_ns}
        return wire.encode(arrays, meta | {"sources": [source]})

    def _alarm(self) -> list[Word]:
        number, cause = int(self._rng.integers(self._count + 1)), self._chosen(("anomaly", "disk-full", "x"))
        cause += str(number) if cause == "x" else ""
        fields = self._alarm_fields(f"{NAME}.{cause}.{number}", cause)
        if self._rng.random() < 0.5:
            found = list(drawn(Alarm, self._rng, self._seen).items())
            fields |= dict([found[int(self._rng.integers(len(found)))]])
        states = ("raised", "cleared", "raised")[: int(self._rng.integers(1, 4))]
        bodies = [json.dumps(fields | {"state": state}).encode() for state in states]
        return [Word("alarm", cause, body, retain=self._rng.random() < 0.5) for body in bodies]

    def _ask(self) -> list[Word]:
        missing = [int(number) for number in self._rng.integers(0, 50, size=int(self._rng.choice([0, 0, 1, 5_000])))]
        return [Word("want", self._digest(), json.dumps({"missing": missing}).encode())]

    def _break(self) -> list[Word]:
        if self._said and self._rng.random() < 0.7:
            word = self._said[int(self._rng.integers(len(self._said)))]
            return [word._replace(payload=mutated(word.payload, self._rng))]
        word = self._words(self._chosen(list(self._kinds)))
        return [word._replace(payload=mutated(word.payload, self._rng))]

    def _swell(self) -> list[Word]:
        channel, size = self._chosen(list(self._kinds)), PACKET_BYTES - int(self._rng.choice([200, 200, 200, 0]))
        if channel != "status":
            return [self._words(channel, swollen(self._drawn(channel), size, self._rng))]
        status = json.loads(self._status(device={"location": ""}))  # which is retained, and known of it from then on
        status["device"] = json.loads(swollen(status["device"], size - len(json.dumps(status)), self._rng))
        return [Word("status", "agent", json.dumps(status).encode(), retain=True)]

    def _repeat(self) -> list[Word]:
        if not self._said:
            return []
        word = self._said[int(self._rng.integers(len(self._said)))]
        return [word._replace(retain=word.retain or self._rng.random() < 0.3)]

    def _babble(self) -> list[Word]:
        channel, size = self._chosen(self._channels), int(np.exp(self._rng.uniform(0.0, np.log(20_000))))
        item = may_write()[channel]
        return [Word(channel, "x" if item == "+" else item, self._rng.bytes(size), self._rng.random() < 0.3)]

    def _empty(self) -> list[Word]:
        held = [word for word in self._said if word.retain]
        return [held[int(self._rng.integers(len(held)))]._replace(payload=b"")] if held else []

    def _leave(self) -> list[Word]:
        away_s = float(self._rng.uniform(*AWAY_S))
        self._world.note(NAME, f"is away for {away_s:.0f} s")
        self._world.network.cut_off(NAME, away_s)
        return []

    # What it answers.

    def _answer(self) -> list[Word]:
        chunks = self._chunks()
        return [self._update(chunk) for chunk in chunks]

    def _begin(self) -> list[Word]:
        """Begin an update that lacks a chunk, or of which nothing ever fits."""
        if self._rng.random() < 0.5:
            size, chunks = int(self._rng.integers(1, 2**25)), int(self._rng.integers(1, 1_000))
            digest = self._rng.bytes(32).hex()
            pieces = [self._rng.bytes(int(self._rng.integers(900))) for _ in range(int(self._rng.integers(1, 5)))]
            heads = [{"digest": digest, "index": index, "chunks": chunks, "size_bytes": size} for index in range(5)]
            bodies = [json.dumps(head).encode() + b"\n" + piece for head, piece in zip(heads, pieces, strict=False)]
            return [self._update(payload) for payload in bodies]
        self._rest = deque(self._chunks())
        if self._rest:
            self._rest.rotate(-int(self._rng.integers(len(self._rest))))
            self._rest.pop()
        return self._go_on()

    def _go_on(self) -> list[Word]:
        return [self._update(self._rest.popleft())] if self._rest else []

    def _update(self, chunk: bytes) -> Word:
        return Word("update", hashlib.sha256(chunk).hexdigest(), chunk, retain=self._rng.random() < 0.1)

    def _chunks(self) -> list[bytes]:
        """Return the chunks of an answer to the open round, as the settings of its site have them."""
        service = self._cloud.service
        if service is None:
            return []
        state = service.state
        meta: dict[str, Any] = {
            "run": state.rounds.run,
            "round_index": state.rounds.server.round_index,
            "phase": state.rounds.server.phase,
            "after": state.rounds.remembered.get(NAME, ""),
        }
        if self._rng.random() < 0.3:
            odd = ODD_META[int(self._rng.integers(len(ODD_META)))]
            meta[self._chosen(list(meta))] = odd
        head, _, rest = wire.encode(self._poisoned(self._trained()), meta).partition(b"\n")
        body = resealed(head.replace(f'"{HALF}"'.encode(), b'"\\ud800"') + b"\n" + rest)
        self._world.witness.updates[NAME, hashlib.sha256(body).hexdigest()] = body
        return split(body, state.context.settings.limits.max_payload_bytes)

    def _trained(self) -> Arrays:
        """Return what an honest gateway with rows of its own would send, where it can."""
        state = self._cloud.service.state if self._cloud.service is not None else None
        if state is None:
            return {}
        number = (state.rounds.run, state.rounds.server.round_index, state.rounds.server.phase)
        if self._made is not None and self._made[0] == number:
            return self._made[1]
        rows = self._rng.normal(size=(WINDOWS, len(FEATURES["steps"])))
        labels = np.arange(WINDOWS) % 2 if state.rounds.algorithm.labels else np.zeros(WINDOWS, dtype=np.int64)
        rows[labels == 1] += SHIFT
        data: Arrays = {ROWS: rows.astype(np.float32), SECRET: np.frombuffer(self._rng.bytes(32), np.uint8)}
        data |= {LABELS: labels.astype(np.int64)} if state.rounds.algorithm.labels else {}
        rng = generator(state.context.settings.algorithm.seed, state.rounds.server.round_index, NAME)
        train = state.rounds.algorithm.phases[state.rounds.server.phase].train
        try:
            self._own, update = train(state.rounds.server.global_state, self._own, data, rng)
        except UNTRAINED:
            update = {"x": self._rng.normal(size=3)}
        self._made = (number, update)
        return update

    def _poisoned(self, update: Arrays) -> Arrays:
        """Return an update as it is, or in one of its arrays another."""
        if not update or self._rng.random() < 0.3:
            return update
        name = self._chosen(list(update))
        array, kind = update[name], float(self._rng.random())
        with np.errstate(all="ignore"):
            if kind < 0.5:
                factor = EXTREME[int(self._rng.integers(len(EXTREME)))]
                return {**update, name: (array.astype(np.float64) * factor).astype(array.dtype)}
        if kind < 0.6:
            return {other: one for other, one in update.items() if other != name}
        if kind < 0.7:
            return {**update, self._chosen(("x", "n", HALF, "w" * 300)): array}
        if kind < 0.8:
            return {**update, name: np.zeros((0, *array.shape))}
        if kind < 0.9:
            return {**update, name: np.repeat(np.ravel(array), int(self._rng.integers(1, 2_000)))[:4_000]}
        return {**update, name: array.astype(np.float64) + self._rng.normal(size=array.shape)}
