"""What a simulated world promises of evidence: it follows every anomaly, arrives as it was made, and once.

An anomaly and its evidence are committed together, and what a gateway gives up for lack of space its tombstone tells.
The aggregator keeps the first of each alarm, whatever comes later and whoever sends it. What a hostile gateway sends as
evidence is its own and bounded, and whatever it is, an operator can read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from fedgate.cloud_aggregator.storage.evidence_table import BETWEEN, KEPT, KEPT_BYTES, ROW_BYTES
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.evidence.text import WIDTH, render_evidence
from fedgate.config.protocol import topics
from fedgate.config.protocol.evidence import EVIDENCE_BYTES, AlarmEvidence, name_item
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import CONTROL, Alarm
from fedgate.gateway_agent import events
from fedgate.gateway_agent.events import CLASSES, EVIDENCE_PRIORITY
from fedgate.gateway_agent.monitor.monitor import ANOMALY

KIND = CLASSES[EVIDENCE_PRIORITY]  # of the tombstones of evidence
ALARM_BYTES = 1_024  # of an alarm, which leaves before its evidence
Item = tuple[str, str]  # gateway and name


class Evidences:
    """The evidence of a world, by gateway and item."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self.told: dict[Item, list[AlarmEvidence]] = {}  # by what a gateway committed
        self._first: dict[Item, AlarmEvidence] = {}  # by what the aggregator committed
        self._given_up: set[Item] = set()  # and a tombstone says so
        self.counts = {"evidence": 0, "evidence_bytes": 0, "alarm_bytes": 0}

    def committed(self, gateway: str, effects: Sequence[Any]) -> None:
        """Take note of what a gateway's store holds from now on; what a model raises must not be alone in it."""
        queued = {one.name: one.item for one in effects if isinstance(one, events.Enqueue)}
        for name, item in queued.items():
            where, size = topics.parse(item.topic), sum(map(len, item.payloads))
            if where.channel == "evidence":
                self.told.setdefault((gateway, name), []).append(AlarmEvidence.from_bytes(item.payloads[0]))
                self.counts["evidence_bytes"] += size
            elif where.channel == "alarm":
                self.counts["alarm_bytes"] += size
                if size > ALARM_BYTES:
                    self._violate(f"{gateway} has an alarm of {size} bytes, {ALARM_BYTES} at most")
                self._see_evidence(gateway, where, Alarm.from_bytes(item.payloads[0]), queued)
            elif where[2:] == ("tombstone", KIND):
                self._give_up(gateway, Tombstone.from_bytes(item.payloads[0]), effects)

    def _see_evidence(self, gateway: str, where: topics.Topic, alarm: Alarm, queued: Mapping[str, events.Item]) -> None:
        is_of_model = where.item == ANOMALY and alarm.state == "raised" and alarm.model_version
        if is_of_model and name_item(alarm.id) not in queued and not self._is_given_up(queued):
            self._violate(f"{gateway} committed {alarm.id} without its evidence")

    @staticmethod
    def _is_given_up(queued: Mapping[str, events.Item]) -> bool:
        return any(topics.parse(item.topic)[2:] == ("tombstone", KIND) for item in queued.values())

    def _give_up(self, gateway: str, stone: Tombstone, effects: Sequence[Any]) -> None:
        """Take note of what a tombstone is for: what leaves the store in its commit."""
        dequeued = {one.name for one in effects if isinstance(one, events.Dequeue)}
        self._given_up |= {(gateway, name) for name in dequeued | {stone.id} if (gateway, name) in self.told}

    def stored(self, gateway: str, evidence: AlarmEvidence) -> None:
        """See that what the aggregator takes for evidence is what a gateway made."""
        self._first.setdefault((gateway, evidence.item), evidence)
        if evidence not in self.told.get((gateway, evidence.item), ()):
            self._violate(f"{gateway} never made the evidence of {evidence.alarm} that the aggregator stored")

    def opened(self, store: Store) -> None:
        """See that a restart finds of each alarm the evidence that came first."""
        self._compare(store.read_rows("evidence", "gateway", "body"))

    def _compare(self, rows: Sequence[dict[str, Any]]) -> None:
        found = {(row["gateway"], one.item): one for row in rows if (one := _read(row)) and row["gateway"] in self._own}
        for key in sorted(found.keys() ^ self._first.keys()):
            what = "is not in the store any more" if key in self._first else "is in the store, and never came"
            self._violate(f"evidence {key[1]} of {key[0]} {what}")
        for key in sorted(found.keys() & self._first.keys()):
            if found[key] != self._first[key]:
                self._violate(f"evidence {key[1]} of {key[0]} is another than came first")

    @property
    def _own(self) -> set[str]:
        """The gateways that made evidence, and none that is hostile."""
        return {gateway for gateway, _ in self.told}

    def audit(self, store: Store, stored: Set[Item], lost: Set[Item], hostile: str) -> None:
        """Compare what the aggregator holds in the end with what gateways told."""
        rows, losses = store.read_rows("evidence"), store.read_rows("losses")
        self._compare(rows)
        for row in rows:
            text = render_evidence(_read(row))
            if CONTROL.search(text.replace("\n", "")) or max(map(len, text.split("\n"))) > WIDTH:
                self._violate(f"evidence of {row['gateway']} cannot be shown in {WIDTH} columns")
        sizes = Counter[str]()
        for row in rows:
            sizes[row["gateway"]] += len(row["body"]) + ROW_BYTES
        for gateway, count in Counter(row["gateway"] for row in rows).items():
            if count >= KEPT + BETWEEN or sizes[gateway] > KEPT_BYTES + BETWEEN * 2 * EVIDENCE_BYTES:
                self._violate(f"{gateway} has {count} rows of evidence, {sizes[gateway]} bytes")
        self.counts["evidence"] = sum(row["gateway"] != hostile for row in rows)
        reporting = {row["gateway"] for row in losses if row["kind"] == KIND}
        for key, made in self.told.items():
            is_owed = key in stored or key not in lost
            if key not in self._first and is_owed and not (key in self._given_up and key[0] in reporting):
                self._violate(f"the evidence of {made[0].alarm} was committed and never arrived")
            if any(len(one.to_bytes()) > EVIDENCE_BYTES for one in made):
                self._violate(f"the evidence of {made[0].alarm} is longer than {EVIDENCE_BYTES} bytes")


def _read(row: dict[str, Any]) -> AlarmEvidence:
    return AlarmEvidence.model_validate_json(row["body"])  # with defaults written out it may be longer than the message
