"""Which alarms stand: raised and not cleared, whatever order their messages came in and however often.

A message says one of two things of an alarm, that it was raised or that it was cleared. What is known of it is the set
of these, so the order of their coming leaves no trace: an alarm that was cleared before its raising arrives never
stands. Alarms that are over are remembered for a while, so that a late or repeated message is known as such.

A gateway has one alarm of a cause at a time, so one that began later is the end of those before it: a gateway that lost
its store never tells theirs. Which is later is told by the onset, and where that cannot be believed by the arrival; but
clocks are set back and messages are sent again, so neither goes against the order in which one card raised its alarms.
A card that was set back, or a new one, counts anew: so an alarm gives way to one that was counted later only where both
are known to be of one card, or where its onset cannot be believed anyway. Of two stores of one boot the time since the
boot tells.
The end of an alarm that is the only one of its cause comes from the statuses: see `Quiet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedgate.cloud_aggregator.context import SET_NS
from fedgate.config.protocol.alarm_book import AlarmBook
from fedgate.config.protocol.messages import Alarm, Status
from fedgate.models.time_units import NS

KEPT = 8  # alarms of one cause of one gateway that are remembered after they ended
AHEAD_NS = 60 * NS  # a clock that says more than this after the arrival is wrong
GRACE_S = 300.0  # five statuses of a gateway, as it is shipped
ACTIVE_CAUSES_MAX = 200  # of one gateway at once
CAUSES_MAX = 1_000  # of one gateway, ever: each stays retained at the broker
OF_OURS = "identity-"  # begins the causes of alarms that are about a gateway and that it does not know of
TEXTS_MAX = 4_000_000  # characters in what is known of the alarms of one gateway: 500 of each, if there were 8,000
ALWAYS = "anomaly"  # what a gateway is there for is never one cause too many
ROW = (  # the columns of an alarm in the store that have the same name in the message
    *("id", "cause", "kind", "severity", "text", "onset_ns", "score", "level"),
    *("model_version", "model_digest", "clock", "boot_id", "rule", "feature", "sequence", "store_id"),
    *("weather", "power"),
)
# How an alarm ended whose gateway did not tell its end.
Ended = Literal["", "superseded", "forgotten", "removed", "replaced"]
WHY: dict[Literal["removed", "replaced"], str] = {
    "removed": "removed: the operator has taken its gateway away",
    "replaced": "replaced: another device has taken the name of its gateway",
}


@dataclass(frozen=True)
class AlarmRecord:
    """What is known of one alarm."""

    alarm: Alarm  # the clearing message where it is here, else the raising one
    onset_ns: int  # as far as it can be believed, else the time of arrival
    is_raised: bool
    is_cleared: bool
    ended: Ended = ""
    received_ns: int = 0  # when it became known here

    @property
    def active(self) -> bool:
        """True from the raising to the clearing."""
        return self.is_raised and not self.is_cleared


Cards = Mapping[str, str]  # boot -> the card it was on, where more is known of that than an alarm says
Register = dict[str, dict[str, AlarmRecord]]  # by gateway and id, in the order they became known


def take(
    alarms: Register, gateway: str, alarm: Alarm, now_ns: int, cards: Cards | None = None
) -> tuple[Register, AlarmRecord, bool]:
    """Return the alarms with one more message, what is now known of its alarm, and whether it said anything new."""
    of_gateway = alarms.get(gateway, {})
    known = of_gateway.get(alarm.id)
    if known is not None and is_known(known, alarm):
        return alarms, known, False
    now_known = _make_record(of_gateway, alarm, now_ns, cards or {}) if known is None else _join(known, alarm)
    of_gateway = {**of_gateway, alarm.id: now_known}
    return {**alarms, gateway: _prune(of_gateway, alarm.cause)}, now_known, True


def is_known(known: AlarmRecord | None, alarm: Alarm) -> bool:
    """Tell whether a message says nothing that is not known of its alarm."""
    if known is None:
        return False
    return known.is_raised if alarm.state == "raised" else known.is_cleared and not known.ended


def _make_record(of_gateway: dict[str, AlarmRecord], alarm: Alarm, now_ns: int, cards: Cards) -> AlarmRecord:
    is_possible = SET_NS <= alarm.onset_ns <= now_ns + AHEAD_NS
    is_believed = is_possible and alarm.clock != "unsynchronised"
    same = [known for known in of_gateway.values() if known.alarm.cause == alarm.cause]
    counted = [(known, _is_of_one_card(known.alarm, alarm, cards)) for known in same if known.alarm.sequence > 0]
    earlier_ns = [
        known.onset_ns for known, is_one in counted if is_one is not False and known.alarm.sequence < alarm.sequence
    ]
    if not is_believed:  # then it is the latest of those that came so far, wherever our clock has gone meanwhile
        earlier_ns += [known.onset_ns + 1 for known in same]
    later_ns = [
        known.onset_ns
        for known, is_one in counted
        if (is_one or (is_one is None and not is_believed)) and 0 < alarm.sequence < known.alarm.sequence
    ]
    for known, is_one in counted:
        if is_one is False and (is_later := _is_later_in_its_boot(alarm, known.alarm)) is not None:
            (earlier_ns if is_later else later_ns).append(known.onset_ns + (1 if is_later else -1))
    if alarm.cause.startswith(OF_OURS):  # raised here, one after the other, wherever our clock has gone meanwhile
        earlier_ns, later_ns = [known.onset_ns + 1 for known in same], []
    return AlarmRecord(
        alarm,
        onset_ns=min([max([alarm.onset_ns if is_believed else now_ns, *earlier_ns]), *later_ns]),
        is_raised=alarm.state == "raised",
        is_cleared=alarm.state == "cleared",
        received_ns=now_ns,
    )


def _is_of_one_card(one: Alarm, other: Alarm, cards: Cards) -> bool | None:
    """Tell whether one card counted both; None where that is not known."""
    if one.store_id and other.store_id and one.store_id != other.store_id:
        return False  # also in one boot: whoever commissions anew removes the store and starts the agent
    if one.boot_id and one.boot_id == other.boot_id:
        return True
    of_one, of_other = (cards.get(alarm.boot_id, alarm.store_id) for alarm in (one, other))
    return of_one == of_other if of_one and of_other else None


def _is_later_in_its_boot(one: Alarm, other: Alarm) -> bool | None:
    """Tell whether one of two alarms of different stores was raised after the other; None where no clock can say. A
    store begins when the one before it in the same boot has ended, so this holds for all that either reported.
    """
    if not one.boot_id or one.boot_id != other.boot_id or one.monotonic_ns is None or other.monotonic_ns is None:
        return None
    return one.monotonic_ns > other.monotonic_ns


def _join(known: AlarmRecord, alarm: Alarm) -> AlarmRecord:
    both = replace(known, is_raised=True, is_cleared=True)
    return replace(both, alarm=alarm, ended="") if alarm.state == "cleared" else both


def _prune(of_gateway: dict[str, AlarmRecord], cause: str) -> dict[str, AlarmRecord]:
    """Forget those alarms of a cause first that are over and became known first, and never the latest."""
    same = [key for key, known in of_gateway.items() if known.alarm.cause == cause]
    latest = max(same, key=lambda key: _age(of_gateway[key]))
    first_to_go = sorted(same, key=lambda key: (key == latest, of_gateway[key].active))
    surplus = set(first_to_go[: max(len(same) - KEPT, 0)])
    return {key: known for key, known in of_gateway.items() if key not in surplus}


def select_active(alarms: Register, gateway: str) -> list[AlarmRecord]:
    """Return the alarms of a gateway that stand, the latest last."""
    standing = [known for known in alarms.get(gateway, {}).values() if known.active]
    return sorted(standing, key=_age)


def list_current(alarms: Register, gateway: str) -> dict[str, AlarmRecord]:
    """Return, for each cause of a gateway, the alarm that says how it is now: one that stands, else the last to end."""
    ordered = sorted(alarms.get(gateway, {}).values(), key=lambda known: (known.active, *_age(known)))
    return {known.alarm.cause: known for known in ordered}


def list_of_cause(alarms: Register, gateway: str, cause: str) -> list[AlarmRecord]:
    """Return what is known of the alarms of a cause, the latest last, behind it one that stands."""
    of_cause = [known for known in alarms.get(gateway, {}).values() if known.alarm.cause == cause]
    return sorted(of_cause, key=lambda known: (known.active, *_age(known)))


def _age(known: AlarmRecord) -> tuple[int, int, int, str]:
    return (known.onset_ns, known.alarm.sequence, known.alarm.onset_ns, known.alarm.id)


def list_active(alarms: Register) -> list[tuple[str, str]]:
    """Return gateway and cause of each alarm that stands."""
    return [(gateway, known.alarm.cause) for gateway in alarms for known in select_active(alarms, gateway)]


def find_superseded(alarms: Register, gateway: str) -> list[Alarm]:
    """Return the ends of the alarms of a gateway that stand although it has reported a later one of their cause."""
    latest: dict[str, AlarmRecord] = {}
    for known in sorted(alarms.get(gateway, {}).values(), key=_age):
        latest[known.alarm.cause] = known
    ends = []
    for known in select_active(alarms, gateway):
        later = latest[known.alarm.cause]
        if later.alarm.id != known.alarm.id:
            text = f"superseded: its gateway has since raised {later.alarm.id}, and told no end of this one"
            ends.append(known.alarm.clear(max(known.onset_ns, later.onset_ns), text))
    return ends


def end_forgotten(alarms: Register, gateway: str, now_ns: int) -> list[Alarm]:
    """Return the ends of all alarms of a gateway that stand, as it knows of none."""
    text = f"forgotten: its gateway has said for {GRACE_S:.0f} s that it has no alarm, and told no end of this one"
    standing = [known.alarm for known in select_active(alarms, gateway)]
    return [alarm.clear(now_ns, text) for alarm in standing if not alarm.cause.startswith(OF_OURS)]


def end_of_device(alarms: Register, gateway: str, now_ns: int, how: Literal["removed", "replaced"]) -> list[Alarm]:
    """Return the ends of all alarms of a gateway that stand, as its device is gone for good."""
    return [known.alarm.clear(now_ns, WHY[how]) for known in select_active(alarms, gateway)]


def select_ours(alarms: Register, gateway: str) -> AlarmBook:
    """Return the book of the alarms that this aggregator has raised of a gateway."""
    standing = [known.alarm for known in select_active(alarms, gateway)]
    return AlarmBook({alarm.cause: alarm for alarm in standing if alarm.cause.startswith(OF_OURS)})


def end_alarm(alarms: Register, gateway: str, end: Alarm, how: Ended) -> tuple[Register, AlarmRecord]:
    """Return the alarms with one ended that its gateway has not ended, and what is now known of it."""
    over = replace(alarms[gateway][end.id], alarm=end, is_cleared=True, ended=how)
    return {**alarms, gateway: {**alarms[gateway], end.id: over}}, over


@dataclass(frozen=True)
class Quiet:
    """Since when a gateway says that it has no alarm and nothing to send, by the aggregator's uptime.

    An empty outbox means that every end it has reported is stored here, so an alarm that stands then was forgotten. A
    status may be older than the alarm all the same (retained, sent again, overtaken on its way), and says nothing of
    its age. So it takes two of one boot with `GRACE_S` between them, and no word of an alarm or a new connection since
    the first: of these the second was sent after the first had come, and that after the alarm had.
    """

    boot_id: str
    since_ns: int

    def is_over(self, uptime_ns: int) -> bool:
        """True where it has lasted long enough."""
        return uptime_ns - self.since_ns >= GRACE_S * NS


def note_quiet(known: Quiet | None, status: Status, uptime_ns: int) -> Quiet | None:
    """Return since when a gateway is quiet with one more status of it; None where it is not, or does not say so."""
    is_stated = {"alarms_active", "outbox"} <= status.model_fields_set and status.boot_id != ""
    if status.state != "online" or not is_stated or status.alarms_active or status.outbox:
        return None
    if known is None or known.boot_id != status.boot_id:
        return Quiet(status.boot_id, uptime_ns)
    return known


def find_refusal(alarms: Register, gateway: str, alarm: Alarm) -> str:
    """Return why a message is not taken; empty where it is. What is stored and told of causes must have an end, and an
    alarm has one cause.
    """
    of_gateway = alarms.get(gateway, {})
    known = of_gateway.get(alarm.id)
    if known is not None and known.alarm.cause != alarm.cause:
        return f"its id is that of an alarm of cause {known.alarm.cause}"
    if known is not None or alarm.cause == ALWAYS:
        return ""
    causes = {known.alarm.cause for known in of_gateway.values()}
    standing = {known.alarm.cause for known in of_gateway.values() if known.active}
    if alarm.state == "raised" and alarm.cause not in standing and len(standing) >= ACTIVE_CAUSES_MAX:
        return f"alarms of {len(standing)} causes stand, and {ACTIVE_CAUSES_MAX} are the most of one gateway"
    if alarm.cause not in causes and len(causes) >= CAUSES_MAX:
        return f"alarms of {len(causes)} causes are known, and {CAUSES_MAX} are the most of one gateway"
    characters = sum(map(_count_characters, (alarm, *(known.alarm for known in of_gateway.values()))))
    if characters > TEXTS_MAX:
        return f"its alarms would have {characters} characters, and {TEXTS_MAX} are the most of one gateway"
    return ""


def _count_characters(alarm: Alarm) -> int:
    return sum(map(len, (alarm.id, alarm.text, alarm.feature, alarm.rule, alarm.boot_id, alarm.model_digest)))


def alarm_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row of the store says of an alarm, but for its state."""
    return {name: row[name] for name in ROW}


def restore_alarms(rows: Iterable[dict[str, Any]]) -> Register:
    """Return what is known of alarms from their rows in the store, given in the order they were received."""
    alarms: Register = {}
    for row in rows:
        gateway = row["gateway"]
        for state in ("raised", "cleared"):
            if row[f"{state}_ns"] is not None:
                alarm = Alarm.model_validate({**alarm_fields(row), "state": state, "t_ns": row[f"{state}_ns"]})
                alarms, known, _ = take(alarms, gateway, alarm, row["received_ns"])
                held = replace(known, onset_ns=row["begun_ns"], ended=row["ended"])
                alarms = {**alarms, gateway: {**alarms[gateway], alarm.id: held}}
    return alarms
