"""What the witness of a simulated world says of alarms: of orders, their log, notices, maintenance and evidence.

Goal: what is done about an alarm is done once and stays done. Method: each check is given what it must complain of,
beside what is sound; then defects of the product are put back, and worlds show them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, delete

from fedgate.cloud_aggregator.alarms import handling, records
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.alarms.workflow import Workflow, fold
from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    Answered,
    Dequeue,
    Durable,
    Effect,
    Enqueue,
    Event,
    Outward,
    Post,
    RecordAlarm,
    RecordEvidence,
    RecordLoss,
)
from fedgate.cloud_aggregator.notifications import webhook
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.state import State
from fedgate.cloud_aggregator.storage.evidence_table import EvidenceRows
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.storage.tables import ALARM_EVENTS, EVIDENCE
from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Alarm, MaintenanceWindow, MaintenanceWindows
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.environment.faults import Faults, Hostile, Work
from fedgate.firmware_sim.world.environment.time import T0_NS
from fedgate.firmware_sim.world.promises.alarms.evidence import Evidences
from fedgate.firmware_sim.world.promises.alarms.log import AlarmLog, Wanted
from fedgate.firmware_sim.world.promises.alarms.maintenance import Maintenance
from fedgate.firmware_sim.world.promises.alarms.states import Key
from fedgate.gateway_agent import events as of_gateway
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.monitor.maintenance import MAINTENANCE
from fedgate.gateway_agent.pipeline import pipeline
from fedgate.models.time_units import NS
from tests.support.sites import topic

apply_change, apply_evidence = handling.apply_change, EvidenceRows.apply
KEY = Key("north", "north.anomaly.5")
NAME = "/".join(KEY)


def make_alarm(state: str = "raised", alarm: str = KEY.alarm) -> Alarm:
    fields = {"id": alarm, "cause": "anomaly", "kind": "anomaly", "state": state, "severity": "major", "text": ""}
    return Alarm.model_validate(fields | {"onset_ns": T0_NS, "t_ns": T0_NS + NS})


def make_event(kind: str = "acknowledge", who: str = "ann", **body: Any) -> AlarmEvent:
    return AlarmEvent(*KEY, "", T0_NS, who, kind, body)


class Said:
    """The witness of alarms, what it complains of, and the aggregator's store."""

    def __init__(self, folder: Path) -> None:
        self.violations, self.elapsed_s = list[str](), 0.0
        self.log = AlarmLog(self.violations.append, lambda: self.elapsed_s)
        self.path = folder / "cloud.db"
        with closing(Store(self.path)):
            pass

    def commit(self, *effects: Durable) -> None:
        """Let the aggregator commit these, as the witness sees it and in its store."""
        with closing(Store(self.path)) as store:
            store.commit(effects)
        self.log.committed(effects, T0_NS)

    def raised(self, *more: Durable, alarm: Alarm | None = None) -> None:
        self.commit(RecordAlarm("north", alarm or make_alarm(), T0_NS, T0_NS), *more)

    def order(self, wanted: Wanted = "done", **body: Any) -> int:
        given = {"action": "acknowledge", "who": "ann", "text": "", "alarms": [NAME]} | body
        with closing(Store(self.path)) as store:
            number = store.order("alarm", given)
        self.log.ordered(number, given, wanted)
        return number

    def reopen(self) -> None:
        with closing(Store(self.path)) as store:
            self.log.opened(store)

    def audit(self) -> dict[str, int]:
        with closing(Store(self.path)) as store:
            return self.log.audit(store, T0_NS)

    def change(self, statement: Any) -> None:
        """Let somebody else change the store."""
        with closing(Store(self.path)) as store, store._db.begin():
            store._db.execute(statement)


@pytest.fixture
def said(tmp_path: Path) -> Said:
    return Said(tmp_path)


def test_what_was_ordered_is_done_once_and_stays(said: Said) -> None:
    said.raised()
    said.commit(Answered(said.order(), "acknowledged"), make_event())
    said.commit(Answered(said.order(), "was acknowledged by ann already"))  # which leaves no event
    said.commit(Answered(said.order(action="label", label="work"), "label work"), make_event("label", label="work"))
    said.commit(Answered(said.order("refused", alarms=["north/none"]), "refused", "there is no such alarm"))
    said.reopen()
    counts = said.audit()
    assert said.violations == [] and (counts["actions"], counts["refused"]) == (3, 1)
    assert said.log.states.state(KEY, T0_NS) == "acknowledged"


def done_without_event(said: Said) -> None:
    said.commit(Answered(said.order(), "acknowledged"))


def done_twice(said: Said) -> None:
    said.commit(Answered(said.order(), "acknowledged"), make_event(), make_event())


def done_a_second_time(said: Said) -> None:
    said.commit(Answered(said.order(), "acknowledged"), make_event())
    said.commit(Answered(said.order(), "acknowledged"), make_event())


def done_by_nobody(said: Said) -> None:
    said.commit(make_event())


def done_otherwise(said: Said) -> None:
    said.commit(Answered(said.order(action="label", label="work"), "label"), make_event("label", label="false"))


def refused_and_done(said: Said) -> None:
    said.commit(Answered(said.order("either"), "refused", "no"), make_event())


def refused_without_a_reason(said: Said) -> None:
    said.commit(Answered(said.order(), "refused", "no"))


def taken_though_nonsense(said: Said) -> None:
    said.commit(Answered(said.order("refused"), "acknowledged"), make_event())


def shelved_when_over(said: Said) -> None:
    said.raised(alarm=make_alarm("cleared"))
    event = make_event("shelve", until_ns=T0_NS + 60 * NS)
    said.commit(Answered(said.order(action="shelve", for_s=60.0), "shelved"), event)


def log_is_shorter(said: Said) -> None:
    said.commit(Answered(said.order(), "acknowledged"), make_event())
    said.change(delete(ALARM_EVENTS))
    said.reopen()


def log_is_changed(said: Said) -> None:
    said.commit(Answered(said.order(), "acknowledged"), make_event())
    said.change(ALARM_EVENTS.update().values(who="bo"))
    said.reopen()


def log_has_a_row_more(said: Said) -> None:
    row = {"gateway": "north", "alarm": KEY.alarm, "cause": "", "t_ns": 0, "who": "bo", "kind": "note", "body": "{}"}
    said.change(ALARM_EVENTS.insert().values(**row))
    said.reopen()


def answer_is_another(said: Said) -> None:
    number = said.order()
    said.commit(Answered(number, "acknowledged"), make_event())
    said.log.answer_read(number, ("refused", "no"))


def suppressed_for_nothing(said: Said) -> None:
    said.commit(make_event("suppress", who="", is_notified=True, by="suppressed"))


def escalated_though_acknowledged(said: Said) -> None:
    said.commit(Answered(said.order(), "acknowledged"), make_event())
    said.commit(make_event("escalate", who=""))


def nobody_is_called(said: Said) -> None:
    said.log.notices.is_on = True
    said.raised(alarm=make_alarm(alarm="north.anomaly.6"))


def called_twice(said: Said) -> None:
    said.log.notices.is_on = True
    told = tell(make_alarm(alarm="north.anomaly.6"))
    again = replace(told, id="other")
    said.raised(Enqueue(told.id, told), Enqueue(again.id, again), alarm=make_alarm(alarm="north.anomaly.6"))


def called_while_out_of_service(said: Said) -> None:
    said.log.notices.is_on = True
    number = said.order(action="out-of-service", gateway="north", cause="anomaly")
    said.commit(Answered(number, "out"), AlarmEvent("north", "", "anomaly", 0, "ann", "out-of-service"))
    told = tell(make_alarm(alarm="north.anomaly.6"))
    said.raised(Enqueue(told.id, told), alarm=make_alarm(alarm="north.anomaly.6"))


def notice_is_gone(said: Said) -> None:
    told = tell(make_alarm())
    said.commit(Enqueue(told.id, told))
    said.commit(Dequeue(told.id))


def notice_is_lost_at_a_restart(said: Said) -> None:
    said.log.notices._waiting["x"] = "north"
    said.reopen()


def nobody_waits_for_so_long(said: Said) -> None:
    said.log.notices.is_on, said.elapsed_s = True, 3_600.0
    said.log.notices.ticked(T0_NS, 0.0)


def mask_is_not_noticed(said: Said) -> None:
    said.log.states.out.add(("north", "anomaly"))
    said.log.notices.ticked(T0_NS, 0.0)


WRONG = [done_without_event, done_twice, done_a_second_time, done_by_nobody, done_otherwise, refused_and_done]
WRONG += [refused_without_a_reason, taken_though_nonsense, shelved_when_over, log_is_shorter, log_is_changed]
WRONG += [log_has_a_row_more, answer_is_another, suppressed_for_nothing, escalated_though_acknowledged]
WRONG += [nobody_is_called, called_twice, called_while_out_of_service, notice_is_gone, notice_is_lost_at_a_restart]
WRONG += [nobody_waits_for_so_long, mask_is_not_noticed]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_breaks_a_promise_about_alarms_is_seen(said: Said, wrong: Callable[[Said], None]) -> None:
    said.raised()
    assert said.violations == []
    wrong(said)
    assert said.violations


def tell(alarm: Alarm) -> Post:
    return webhook.post_of("bridge", "north", alarm, None, active=alarm.state == "raised")


def test_each_change_is_told_once(said: Said) -> None:
    said.log.notices.is_on = True
    for state in ("raised", "cleared"):
        told = tell(make_alarm(state))
        said.raised(Enqueue(told.id, told), alarm=make_alarm(state))
        said.raised(alarm=make_alarm(state))  # told again by its gateway
        said.log.notices.took(told)
        said.commit(Dequeue(told.id))
    said.log.notices.took(told)  # its answer was lost, and it was sent once more
    assert said.violations == [] and said.log.notices.missing == 0


def test_a_window_of_maintenance_that_is_learned_is_seen() -> None:
    found, end_ns = list[str](), T0_NS + 100 * NS
    maintenance = Maintenance(found.append)
    maintenance.known("north", 5.0)
    window = MaintenanceWindow(gateway="north", from_ns=T0_NS, to_ns=end_ns)
    announced = MaintenanceWindows(changed_ns=T0_NS, windows=(window,), signature="", expires_ns=0)
    maintenance.committed("north", [of_gateway.Save(MAINTENANCE, announced.to_bytes())])
    for ended_ns in (end_ns + 5 * NS, T0_NS, end_ns + 4 * NS):
        maintenance.committed("north", [of_gateway.Keep(FeatureRow(np.zeros(3, np.float32), ended_ns))])
    assert found == [f"north learns from a window of announced maintenance, which ended at {end_ns + 4 * NS}"]
    assert maintenance.changed_ns["north"] == T0_NS
    called_off = announced.model_copy(update={"windows": (window.model_copy(update={"to_ns": T0_NS - 3 * NS}),)})
    maintenance.committed("north", [of_gateway.Save(MAINTENANCE, called_off.to_bytes())])
    maintenance.committed("north", [of_gateway.Keep(FeatureRow(np.zeros(3, np.float32), T0_NS + NS))])
    assert len(found) == 1


# Evidence.


def make_evidence(alarm: str = KEY.alarm, text: str = "") -> AlarmEvidence:
    fields: dict[str, Any] = {"alarm": alarm, "cause": "anomaly", "t_ns": T0_NS, "onset_ns": T0_NS, "window_s": 5.0}
    fields |= {"model_version": 1, "model_digest": "", "rule": "score", "score": 2.0, "level": 1.0, "text": text}
    return AlarmEvidence.model_validate(fields | {"level_of": "own baseline"})


def queue(evidence: AlarmEvidence) -> of_gateway.Enqueue:
    where = topic("north", "evidence", evidence.item)
    return of_gateway.Enqueue(evidence.item, of_gateway.Item(where, (evidence.to_bytes(),), retain=False, priority=2))


def commit_evidence(said: Said, *effects: Durable) -> None:
    with closing(Store(said.path)) as store:
        store.commit(effects)


def judge(said: Said, evidences: Evidences, lost: set[tuple[str, str]] | None = None) -> list[str]:
    with closing(Store(said.path)) as store:
        evidences.opened(store)
        evidences.audit(store, set(), lost or set(), "mallory")
    return said.violations


def test_evidence_arrives_once_or_its_tombstone_does(said: Said) -> None:
    evidences, kept, given_up = Evidences(said.violations.append), make_evidence(), make_evidence("north.anomaly.6")
    evidences.committed("north", [queue(kept), queue(given_up)])
    stone = Tombstone(
        id=given_up.item, kind="evidence", items=1, size_bytes=9, first_ns=1, last_ns=1, why=("outbox-full",)
    )
    where = topic("north", "tombstone", "evidence")
    item = of_gateway.Item(where, (stone.to_bytes(),), retain=False, priority=0)
    evidences.committed("north", [of_gateway.Dequeue(given_up.item), of_gateway.Enqueue(stone.item, item)])
    evidences.stored("north", kept)
    hostile = RecordEvidence("mallory", make_evidence(text="mine"), 1)  # of an alarm that another raised
    commit_evidence(said, RecordEvidence("north", kept, 1), RecordLoss("north", stone, 1), hostile)
    assert judge(said, evidences) == []
    said.change(EVIDENCE.delete().where(EVIDENCE.c.gateway == "north"))
    assert any("is not in the store any more" in text for text in judge(said, evidences))


def test_evidence_that_is_missing_another_or_nobodys_is_seen(said: Said) -> None:
    evidences, made = Evidences(said.violations.append), make_evidence()
    evidences.committed("north", [queue(made)])
    assert judge(said, evidences) == [f"the evidence of {KEY.alarm} was committed and never arrived"]
    said.violations.clear()
    assert judge(said, evidences, {("north", made.item)}) == []
    evidences.stored("north", made)
    commit_evidence(said, RecordEvidence("north", make_evidence(text="another"), 1))
    assert judge(said, evidences) == [f"evidence {made.item} of north is another than came first"] * 2
    said.violations.clear()
    evidences.stored("north", make_evidence(text="forged"))
    assert said.violations == [f"north never made the evidence of {KEY.alarm} that the aggregator stored"]


# Defects of the product, put back.


def split_commit(
    self: Service, state: State, effects: list[Effect], _events: Sequence[Event]
) -> tuple[State, list[Outward], list[Event]]:
    """Store the answer to an order after what it changed."""
    durable = [one for one in effects if isinstance(one, Durable)]
    for part in (True, False):
        self.store.commit([one for one in durable if isinstance(one, AlarmEvent) == part])
    return state, [one for one in effects if not isinstance(one, Durable)], []


def fold_unacknowledged(events: Iterable[AlarmEvent], workflow: Workflow | None = None) -> Workflow:
    """Forget who has acknowledged what at a restart."""
    return fold([one for one in events if one.kind != "acknowledge"], workflow)


def change_unlabelled(alarms: Alarms, context: Any, statuses: Any, gateway: str, alarm: Alarm, cards: Any) -> Any:
    """Take the labels of a gateway's alarms away when another of them is raised."""
    alarms, effects = apply_change(alarms, context, statuses, gateway, alarm, cards)
    held = alarms.workflow.handled.items()
    handled = {key: replace(one, label="") if key.gateway == gateway else one for key, one in held}
    return replace(alarms, workflow=replace(alarms.workflow, handled=handled)), effects


def apply_last(self: EvidenceRows, db: Connection, effect: RecordEvidence) -> None:
    """Let the last evidence of an alarm stay, whoever sent it."""
    db.execute(delete(EVIDENCE).where(EVIDENCE.c.alarm == effect.evidence.alarm))
    apply_evidence(self, db, effect)


HARMED = Faults(hostile=Hostile(messages=2_000.0), work=Work(silence=30.0, silence_s=200.0))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("where", "name", "bug", "seed", "faults", "said"),
    [
        (records, "fold", fold_unacknowledged, 7, None, "which nobody ordered"),
        (pipeline, "is_in_maintenance", lambda *_: False, 9, None, "learns from a window of announced maintenance"),
        (Service, "_commit_at_once", split_commit, 0, None, "which nobody ordered"),
        (handling, "apply_change", change_unlabelled, 7, None, "is said to be"),
        (EvidenceRows, "apply", apply_last, 9, HARMED, "is not in the store any more"),
        (handling, "_must_escalate", lambda *_: False, 6, None, "waits for somebody"),
        (handling, "find_state", lambda *_: "unacknowledged", 9, None, "and it is"),
    ],
)
def test_a_world_shows_it(
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    bug: Callable[..., Any],
    seed: int,
    faults: Faults | None,
    said: str,
) -> None:
    monkeypatch.setattr(where, name, bug)
    monkeypatch.setattr(world, "SETTLE_S", 600.0)
    assert any(said in text for text in world.run(seed, faults=faults).violations)
