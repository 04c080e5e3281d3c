"""Who watches a simulated world: what was committed, published and acknowledged, held against what was promised.

The witness knows nothing of the machines' own opinion of themselves: it sees what their stores committed (of a commit
that was cut, what is there when the store opens again) and what left them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from fedgate.cloud_aggregator import events as cloud_events
from fedgate.cloud_aggregator.state import State
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol import topics, wire
from fedgate.config.protocol.messages import STATUS, ActionAnswer, Alarm, Manifest, Receipt, Status
from fedgate.config.protocol.transfer import parse_chunk
from fedgate.firmware_sim.world.environment.disk import CloudStore, Contents, Doubt, GatewayStore, Renewed
from fedgate.firmware_sim.world.environment.faults import NO_MEMORY
from fedgate.firmware_sim.world.environment.setup import gateway_of
from fedgate.firmware_sim.world.environment.time import T0_NS
from fedgate.firmware_sim.world.promises.alarms.actions import Actions
from fedgate.firmware_sim.world.promises.alarms.damage import Damages
from fedgate.firmware_sim.world.promises.alarms.ends import Card, Ends
from fedgate.firmware_sim.world.promises.alarms.evidence import Evidences
from fedgate.firmware_sim.world.promises.alarms.log import AlarmLog
from fedgate.firmware_sim.world.promises.alarms.maintenance import Maintenance
from fedgate.firmware_sim.world.promises.alarms.samples import Fetches
from fedgate.firmware_sim.world.promises.alarms.states import Key
from fedgate.firmware_sim.world.promises.certificates import Certificates
from fedgate.firmware_sim.world.promises.devices import BY_AGGREGATOR, Devices
from fedgate.firmware_sim.world.promises.latest import Latest
from fedgate.firmware_sim.world.promises.liveness import Liveness
from fedgate.firmware_sim.world.promises.privacy import Privacy
from fedgate.firmware_sim.world.promises.probation import Probations
from fedgate.firmware_sim.world.promises.releases import Releases
from fedgate.firmware_sim.world.promises.rounds import Rounds
from fedgate.gateway_agent import events
from fedgate.gateway_agent.deployment.deployment import MODEL, OTHER
from fedgate.gateway_agent.monitor.monitor import ANOMALY
from fedgate.models.time_units import NS

LogLine = Callable[[str, str], None]
# Why a model may not be taken: what the gateway saw itself.
OF_THE_GATEWAY = ("it alarms in ", "calibration windows lie behind", "the score is saturated")
GIVEN_UP = "times in a row while it loaded it"
OF_ITS_PROCESSOR = ("times in a row it took longer than from window to window", "s a window on this processor")
# Why an update of a world may be refused: nobody in it sends what cannot be read or does not fit.
REFUSALS = re.compile(
    r"it answers \{.*\}, the present round is \{.*\}$"
    r"|it answers round \d+, \d+ rounds ago; updates are kept for \d+ at most, see rounds\.late_rounds$"
    r"|another update of this gateway was counted in this round$"
    r"|another update of this gateway was counted or kept since round \d+$"
    r"|this gateway (is|was) not asked in round \d+$"
)
# And one that was handled, of an algorithm that remembers whom it counted.
SET_BACK = re.compile(
    r"it goes on after \w+, and the last of it that was counted here is \w+: one of the two stores was "
)


class Witness:
    """Collects violations; each is one line that says what was promised and what happened."""

    def __init__(self, note: LogLine, elapsed_s: Callable[[], float]) -> None:
        self._note = note
        self.violations: list[str] = []
        self.alarms: dict[tuple[str, str], list[Alarm]] = {}  # by gateway and item: told of in a commit
        self._reporters: dict[tuple[str, str], Card] = {}  # by gateway and item: who told it last
        self.evidence = Evidences(self.violate)
        self.log = AlarmLog(self.violate, elapsed_s)
        self.actions = Actions(self.violate)
        self.fetches = Fetches(self.violate)
        self.maintenance = Maintenance(self.violate)
        self._step_ns = T0_NS  # the aggregator's time of day at its last step
        self.updates: dict[tuple[str, str], bytes] = {}  # by gateway and digest: the bodies
        self.acknowledged: set[tuple[str, str]] = set()
        self.stored: set[tuple[str, str]] = set()  # alarms, scores, tombstones at the aggregator: gateway and item
        self.privacy = Privacy(self.violate)
        self.devices = Devices(self.violate, elapsed_s)
        self.latest = Latest(self.violate, elapsed_s)
        self.ends = Ends(self.violate)
        self.rounds = Rounds(self.updates, self.violate)
        self.liveness = Liveness(self.violate, elapsed_s)
        self.probations = Probations(self.violate)
        self.releases = Releases(self.violate)
        self.damages = Damages(self.violate, elapsed_s)
        self.certificates = Certificates(self.violate, lambda: T0_NS / NS + elapsed_s())
        self.released: dict[int, str] = {}  # version -> digest
        self.counts = {"alarms": 0, "scores": 0, "summaries": 0, "rounds": 0, "late": 0, "models": 0, "cuts": 0}
        self._versions: dict[str, set[int]] = {}  # by gateway: that it ever had in force
        self.hostile = ""  # a gateway that says what it likes: what it says of itself is owed nothing
        self._trail: list[State] = []  # states of the aggregator in the step at hand
        self._effects: list[Any] = []
        self._received: list[tuple[str, Status]] = []  # by the aggregator since its last step

    def violate(self, what: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(what)
        self._note("world", f"VIOLATION {what}")

    # What gateways do.

    def missing(self) -> list[tuple[str, str]]:
        """Return the alarms and their evidence that the aggregator has not got, by gateway and item."""
        return [item for item in (*self.alarms, *self.evidence.told) if item not in self.stored]

    def doubled(self, device: str, host: str) -> None:
        """Take note of a copy of a device."""
        self.devices.doubled(device, host)
        self.probations.doubled(device, host)

    def gateway_committed(self, device: str, effects: Sequence[events.Durable | Renewed]) -> None:
        """Take note of what a gateway's store holds from now on."""
        self.devices.committed(device, effects)
        name = gateway_of(device)
        self.probations.committed(device, effects)
        self.evidence.committed(name, effects)
        self.maintenance.committed(device, effects)
        for effect in effects:
            match effect:
                case events.Enqueue(name=item_name, item=item):
                    self._queued(device, item_name, item)
                    if topics.parse(item.topic)[2:] == ("alarm", ANOMALY):
                        self.damages.note_alarm(device, Alarm.from_bytes(item.payloads[0]).state)
                case events.Save(key=key, body=body) if key in (MODEL, OTHER):
                    self._in_force(name, body)
                case events.Save(key=key, body=body):
                    self.privacy.keep(name, key, body)
                case events.Keep(seen=seen):
                    self.privacy.row(name, seen.row)
                case Renewed(stored=stored):
                    self.probations.opened(device, stored, is_handled=True)

    def _queued(self, device: str, item_name: str, item: events.Item) -> None:
        channel, name = topics.parse(item.topic).channel, gateway_of(device)
        if channel == "alarm":
            alarm = Alarm.from_bytes(item.payloads[0])
            known, card = self.alarms.setdefault((name, item_name), []), self.devices.card(device)
            if known and alarm not in known and self._reporters[name, item_name] == card:
                self.violate(f"{name} told {item_name} twice, and not the same")
            self.counts["alarms"] += not known
            known.append(alarm)
            self._reporters[name, item_name] = card
            self.ends.note_alarm(name, alarm, card)
            is_instant = alarm.state == "cleared" and alarm.t_ns == alarm.onset_ns and alarm.id.endswith(alarm.boot_id)
            if is_instant and alarm.cause == "disk-full":  # one that begins then again would have its id
                self.violate(f"{name} tells that {alarm.id} ended as it began")
        elif channel == "update":
            body = b"".join(parse_chunk(payload)[1] for payload in item.payloads)
            if hashlib.sha256(body).hexdigest() != item_name:
                self.violate(f"{name} queued an update under a name that is not its digest")
            self.updates[name, item_name] = body
            self.privacy.leaves(name, body)

    def _in_force(self, name: str, body: bytes) -> None:
        arrays, _ = wire.decode(body, size_max=len(body))
        manifest = Manifest.from_bytes(arrays["manifest"].tobytes())
        digest = hashlib.sha256(arrays["onnx"].tobytes()).hexdigest()
        self.counts["models"] += 1
        self._rises(name, manifest.version)
        self.releases.in_force(name, manifest.version)
        if digest != manifest.model.digest:
            self.violate(f"{name} put a model in force whose bytes are not those of its manifest")
        if self.released.get(manifest.version) != manifest.model.digest:
            self.violate(f"{name} put model {manifest.version} in force, which was never released so")

    def _rises(self, name: str, version: int) -> None:
        """See that a gateway takes no model that is older than one it had, but for one that it goes back to."""
        held = self._versions.setdefault(name, set())
        if not self.devices.handled[name] and version not in held and version < max(held, default=0):
            self.violate(f"{name} put model {version} in force, after model {max(held)}")
        held.add(version)

    def gateway_opened(self, device: str, store: GatewayStore, doubt: Doubt | None) -> None:
        """Decide what became of a commit that was cut: all of it is there, or nothing."""
        stored, name = store.read(), gateway_of(device)
        if doubt is not None and self._is_there(name, doubt, store.contents(), is_damaged=bool(store.damage)):
            self.gateway_committed(device, doubt.effects)
        is_handled = self.devices.opened(device, stored, store.damage, self.missing())
        self.probations.opened(device, stored, is_handled=is_handled)
        self.maintenance.opened(device, stored)
        for item_name, item in stored.outbox.items():
            if topics.parse(item.topic).channel == "alarm" and (name, item_name) not in self.alarms:
                self.violate(f"{name} holds {item_name}, which it never committed")

    def _is_there(self, name: str, doubt: Doubt, found: Contents, *, is_damaged: bool = False) -> bool:
        """Tell whether a commit that was cut is in a store, as far as it changed anything."""
        self.counts["cuts"] += 1
        there = doubt.there(found)
        if any(there) and not all(there) and not is_damaged:
            kinds = [type(effect).__name__ for effect in doubt.effects]
            self.violate(f"{name} holds a part of a commit that was cut: {kinds}")
        return any(there)

    def gateway_published(self, device: str, topic: str, payload: bytes) -> None:
        """See that nothing leaves a gateway before it is stored, and nothing that is its own."""
        where, name = topics.parse(topic), gateway_of(device)
        self.privacy.check_secret(name, payload)
        self.certificates.leaves(device, payload)
        if where.channel == "status":
            self._note_status(device, Status.from_bytes(payload))
        if where.channel == "alarm" and (name, Alarm.from_bytes(payload).item) not in self.alarms:
            self.violate(f"{name} published an alarm that its store does not hold: {where.item}")
        if where.channel == "evidence" and (name, where.item) not in self.evidence.told:
            self.violate(f"{name} published evidence that its store does not hold: {where.item}")
        if where.channel == "samples":
            self.fetches.publish(name, where.item)
        if where.channel == "update" and (name, where.item) not in self.updates:
            self.violate(f"{name} published an update that its store does not hold: {where.item[:12]}")

    def _note_status(self, device: str, status: Status) -> None:
        self.devices.note_sent(device, status)
        self.latest.note_sent(gateway_of(device), status)
        self.rounds.refuses(gateway_of(device), status.refused_round)
        loads, why = self.devices.loads[device], status.refusal
        if status.refused_round and why.startswith("round ") and not why.endswith(f": training failed: {NO_MEMORY}"):
            self.violate(f"{device} refused round {status.refused_round}: {status.refusal}")
        for version, why in status.rejected.items():
            digest = self.released.get(int(version), "")
            known = OF_THE_GATEWAY + (OF_ITS_PROCESSOR if loads.was_slow_with(digest) else ())
            known += (GIVEN_UP,) if loads.ever_looked_deadly(digest) else ()
            if not any(reason in why for reason in known):
                self.violate(f"{device} has not model {version}, which is sound: {why}")

    # What the aggregator does.

    def cloud_receives(self, topic: str, payload: bytes) -> None:
        """Take note of what comes to the aggregator."""
        if self._is_hostile(topic):
            return
        where = topics.parse(topic)
        if where.channel == "status" and payload:  # nothing: the aggregator takes away what was retained
            self._received.append((where.gateway, Status.from_bytes(payload)))

    def _is_hostile(self, topic: str) -> bool:
        return topic.split("/")[3] == self.hostile

    def cloud_steps(self, before: State, now_ns: int) -> None:
        """Take note of what the aggregator knows before a step, and of its time of day."""
        self._trail, self._effects, self._step_ns = [before], [], now_ns

    def cloud_thinks(self, after: State) -> None:
        """Take note of what it knows after one more event, whether or not that was committed."""
        self._trail.append(after)

    def cloud_stepped(self) -> None:
        """Hold a step that was committed against the plain loop; what came to the aggregator before it knows now."""
        trail, self._trail = self._trail, []
        self.rounds.stepped(trail, self._effects)
        if trail:
            self.latest.known(trail[-1].access.gateways, self.devices.handled)
        for gateway, status in self._received:
            if gateway in self.certificates.out:
                continue
            self.devices.note_received(gateway, status)
        self._received = []

    def cloud_committed(self, effects: Sequence[cloud_events.Durable]) -> None:
        """Take note of what the aggregator's store holds from now on."""
        self._effects = [*self._effects, *effects]
        for effect in effects:
            if isinstance(effect, cloud_events.RecordAction):
                number = self.releases.record(f"{cloud_events.ACTION}{effect.user}")
                self.log.ordered(number, *self.actions.record(number, effect))
            elif isinstance(effect, cloud_events.Answered):
                self.actions.note_answer(effect.number, effect.text, effect.problem)
        self.releases.committed(effects)
        self.fetches.committed(effects, self._find_alarms)
        self.certificates.committed(effects)
        self.log.committed(effects, self._step_ns)
        for effect in effects:
            if isinstance(effect, cloud_events.RecordAlarm) and not effect.ended:
                self.ends.came(effect.gateway, effect.alarm)
        for effect in effects:
            match effect:
                case cloud_events.RecordAlarm(gateway=gateway, alarm=alarm, ended="") if alarm.kind:
                    self._alarm_stored(gateway, alarm)
                case cloud_events.RecordAlarm(gateway=gateway) if gateway == self.hostile:
                    pass
                case cloud_events.RecordAlarm(gateway=gateway, alarm=alarm, ended=how) if how:
                    cards, is_out = self.devices.cards(gateway), gateway in self.certificates.out
                    is_mixed = self.devices.is_mixed(gateway)
                    self.ends.ended(gateway, alarm, how, cards, is_mixed=is_mixed, is_out=is_out)
                case cloud_events.RecordSummary(gateway=gateway, item=item):
                    self.stored.add((gateway, item))
                    self.counts["summaries"] += 1
                case cloud_events.RecordScores(gateway=gateway, item=item):
                    self.stored.add((gateway, item))
                    self.counts["scores"] += 1
                case cloud_events.RecordEvidence(gateway=gateway, evidence=evidence):
                    self.stored.add((gateway, evidence.item))
                    if gateway != self.hostile:
                        self.evidence.stored(gateway, evidence)
                case cloud_events.RecordLoss(gateway=gateway, tombstone=tombstone):
                    self.stored.add((gateway, tombstone.item))
                case cloud_events.HoldUpdate():
                    self.rounds.kept(effect)
                case cloud_events.SaveTraining(meta=meta):
                    self.rounds.saved(meta)
                case cloud_events.RecordModel(manifest=manifest):
                    self.released[manifest.version] = manifest.model.digest
                case cloud_events.RecordRound(late=late):
                    self.rounds.closed(effect)
                    self.counts["rounds"] += 1
                    self.counts["late"] += len(late)

    def _find_alarms(self, key: Key) -> list[Alarm]:
        """Return what a gateway said of an alarm."""
        own = (alarm for (gateway, _), alarms in self.alarms.items() if gateway == key.gateway for alarm in alarms)
        return [alarm for alarm in own if alarm.id == key.alarm]

    def _alarm_stored(self, gateway: str, alarm: Alarm) -> None:
        self.stored.add((gateway, alarm.item))
        if gateway == self.hostile:
            return
        self.devices.accused(gateway, alarm)
        if alarm.cause.startswith(BY_AGGREGATOR):
            self.ends.note_alarm(gateway, alarm, (BY_AGGREGATOR, 0))

    def cloud_opened(self, state: State, store: CloudStore, doubt: Doubt | None) -> None:
        """Decide what became of a commit that was cut, and see that the training goes on where it was.

        What came to a process that ended before it had committed what it made of it was heard by nobody.
        """
        trail, self._trail, self._effects, self._received = self._trail, [], [], []
        if doubt is not None and self._is_there("the aggregator", doubt, store.contents()):
            self.cloud_committed(doubt.effects)
            self._effects = []
            self.rounds.stepped(trail, doubt.effects)
        self.releases.opened(store)
        self.rounds.resumed(state)
        self.log.opened(store)
        self.fetches.opened(store)
        self.evidence.opened(store)

    def cloud_published(self, topic: str, payload: bytes) -> None:
        """See that nothing is acknowledged that is not stored."""
        where = topics.parse(topic)
        if where.channel == "answer":
            self.actions.publish(where.item, ActionAnswer.from_bytes(payload))
        if where.channel != "receipt" or where.item.endswith(
            ".refused"
        ):  # of samples, which may be of an older request
            return
        receipt, item = Receipt.from_bytes(payload), (where.gateway, where.item)
        if where.item == STATUS:
            self.devices.challenged(where.gateway, receipt.challenge)
            return
        if not receipt.accepted:
            if where.gateway == self.hostile:
                return
            if item in self.alarms or item in self.evidence.told:
                self.violate(f"an alarm of {where.gateway}, or its evidence, was refused: {receipt.reason}")
            elif item in self.updates and not self._may_refuse(where.gateway, receipt.reason):
                self.violate(f"a sound update of {where.gateway} was refused: {receipt.reason}")
            return
        self.acknowledged.add(item)
        if item not in self.stored | self.fetches.here and item not in self.rounds.counted:
            self.violate(f"{where.gateway}/{where.item[:40]} was acknowledged and is not stored")

    def _may_refuse(self, gateway: str, reason: str) -> bool:
        is_set_back = bool(self.devices.handled[gateway]) and SET_BACK.match(reason) is not None
        return is_set_back or REFUSALS.match(reason) is not None

    # The end.

    def audit(self, store: Store, now_ns: int) -> None:
        """Compare what the aggregator's registry holds in the end with what gateways told."""
        self.devices.lost |= {item for item in self.missing() if item[0] in self.certificates.out}
        of_gateways = [row for row in store.read_rows("alarms") if row["gateway"] not in (topics.ALL, self.hostile)]
        rows = {(row["gateway"], row["id"]): row for row in of_gateways if not row["cause"].startswith(BY_AGGREGATOR)}
        reported: dict[tuple[str, str], dict[str, list[Alarm]]] = {}
        for (gateway, item), alarms in self.alarms.items():
            if (gateway, item) in self.stored or (gateway, item) not in self.devices.lost:
                reported.setdefault((gateway, alarms[0].id), {})[alarms[0].state] = alarms
        for key in sorted(reported.keys() - rows.keys()):
            self.violate(f"alarm {key[1]} was raised and is not in the registry")
        for key in sorted(rows.keys() - reported.keys()):
            self.violate(f"alarm {key[1]} of {key[0]} is in the registry and no store of a gateway ever held it")
        for key in sorted(reported.keys() & rows.keys()):
            self._same(rows[key], reported[key])
        self.evidence.audit(store, self.stored, self.devices.lost, self.hostile)
        self.counts |= self.log.audit(store, now_ns)
        self.rounds.audit(store.read_rows("rounds"), self.acknowledged & self.updates.keys())
        self.privacy.audit()
        self.counts |= self.devices.audit() | self.ends.counts | self.probations.counts | self.damages.counts
        self.counts |= self.evidence.counts | self.maintenance.counts
        self.counts |= self.releases.audit(store) | self.actions.counts | self.fetches.audit(store)

    def _same(self, row: dict[str, Any], reported: dict[str, list[Alarm]]) -> None:
        for state, alarms in reported.items():
            stored, times = [row["onset_ns"], row[f"{state}_ns"]], [[alarm.onset_ns, alarm.t_ns] for alarm in alarms]
            if stored not in times:
                self.violate(f"alarm {row['id']} {state}: stored times {json.dumps(stored)}, told {times}")
