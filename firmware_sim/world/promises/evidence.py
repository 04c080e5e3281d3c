"""What a simulated world promises of evidence: it follows every anomaly, arrives as it was made, and once.

An anomaly and its evidence are committed together. What a hostile gateway sends as evidence is its own, and whatever it
is, an operator can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from fedgate.cloud_aggregator.alarms.evidence_text import WIDTH, render_evidence
from fedgate.config.protocol import topics
from fedgate.config.protocol.evidence import EVIDENCE_BYTES, AlarmEvidence, name_item
from fedgate.config.protocol.messages import CONTROL, Alarm
from fedgate.gateway_agent import events
from fedgate.gateway_agent.monitor.monitor import ANOMALY


class Evidences:
    """The evidence of a world, by gateway and item."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self.told: dict[tuple[str, str], list[AlarmEvidence]] = {}  # by what a gateway committed
        self.counts = {"evidence": 0}

    def committed(self, gateway: str, effects: Sequence[Any]) -> None:
        """Take note of what a gateway's store holds from now on; what a model raises must not be alone in it."""
        queued = {one.name: one.item for one in effects if isinstance(one, events.Enqueue)}
        for name, item in queued.items():
            where = topics.parse(item.topic)
            if where.channel == "evidence":
                self.told.setdefault((gateway, name), []).append(AlarmEvidence.from_bytes(item.payloads[0]))
            elif where[2:] == ("alarm", ANOMALY):
                alarm = Alarm.from_bytes(item.payloads[0])
                if alarm.state == "raised" and alarm.model_version and name_item(alarm.id) not in queued:
                    self._violate(f"{gateway} committed {alarm.id} without its evidence")

    def stored(self, gateway: str, evidence: AlarmEvidence) -> None:
        """See that what the aggregator takes for evidence is what a gateway made."""
        if evidence not in self.told.get((gateway, evidence.item), ()):
            self._violate(f"{gateway} never made the evidence of {evidence.alarm} that the aggregator stored")

    def audit(
        self, rows: Sequence[dict[str, Any]], stored: Set[tuple[str, str]], lost: Set[tuple[str, str]], hostile: str
    ) -> None:
        """Compare what the aggregator holds in the end with what gateways told."""
        found: dict[tuple[str, str], AlarmEvidence] = {}
        for row in rows:
            evidence = AlarmEvidence.from_bytes(row["body"].encode())
            text = render_evidence(evidence)
            if CONTROL.search(text.replace("\n", "")) or max(map(len, text.split("\n"))) > WIDTH:
                self._violate(f"evidence of {row['gateway']} cannot be shown in {WIDTH} columns")
            if row["gateway"] != hostile:
                found[row["gateway"], evidence.item] = evidence
        self.counts["evidence"] = len(found)
        for key, made in self.told.items():
            if key not in found and (key in stored or key not in lost):
                self._violate(f"the evidence of {made[0].alarm} was committed and never arrived")
            if any(len(one.to_bytes()) > EVIDENCE_BYTES for one in made):
                self._violate(f"the evidence of {made[0].alarm} is longer than {EVIDENCE_BYTES} bytes")
        for key in sorted(found.keys() - self.told.keys()):
            self._violate(f"{key[0]} has evidence {key[1]} in the store, and never committed it")
