"""Which alarms stand: raised and not cleared, whatever order their messages came in and however often.

A message says one of two things of an alarm, that it was raised or that it was cleared. What is known of it is the set
of these, so the order of their coming leaves no trace: an alarm that was cleared before its raising arrives never
stands. Alarms that are over are remembered for a while, so that a late or repeated message is known as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from config.messages import Alarm

NS = 1_000_000_000
KEPT = 8  # alarms of one cause of one gateway that are remembered after they ended
SET_NS = 1_577_836_800 * NS  # 2020-01-01: a clock that says less was never set
AHEAD_NS = 60 * NS  # a clock that says more than this after the arrival is wrong
ROW = (
    *("id", "cause", "kind", "severity", "text", "onset_ns", "score", "level"),
    *("model_version", "model_digest", "clock", "boot_id"),
)


@dataclass(frozen=True)
class Standing:
    """What is known of one alarm."""

    alarm: Alarm  # the clearing message where it is here, else the raising one
    onset_ns: int  # as far as it can be believed, else the time of arrival
    is_raised: bool
    is_cleared: bool
    is_astray: bool = False  # a clock that claims to be right gave it an impossible onset

    @property
    def active(self) -> bool:
        """True from the raising to the clearing."""
        return self.is_raised and not self.is_cleared


Alarms = dict[str, dict[str, Standing]]  # by gateway and id, in the order they became known


def take(alarms: Alarms, gateway: str, alarm: Alarm, now_ns: int) -> tuple[Alarms, Standing, bool]:
    """Return the alarms with one more message, what is now known of its alarm, and whether it said anything new."""
    of_gateway = alarms.get(gateway, {})
    known = of_gateway.get(alarm.id)
    if known is not None and (known.is_raised if alarm.state == "raised" else known.is_cleared):
        return alarms, known, False
    now_known = _begun(alarm, now_ns) if known is None else _joined(known, alarm)
    of_gateway = {**of_gateway, alarm.id: now_known}
    return {**alarms, gateway: _pruned(of_gateway, alarm.cause)}, now_known, True


def _begun(alarm: Alarm, now_ns: int) -> Standing:
    is_possible = SET_NS <= alarm.onset_ns <= now_ns + AHEAD_NS
    is_believed = is_possible and alarm.clock != "unsynchronised"
    return Standing(
        alarm,
        onset_ns=alarm.onset_ns if is_believed else now_ns,
        is_raised=alarm.state == "raised",
        is_cleared=alarm.state == "cleared",
        is_astray=not is_possible and alarm.clock != "unsynchronised",
    )


def _joined(known: Standing, alarm: Alarm) -> Standing:
    both = replace(known, is_raised=True, is_cleared=True)
    return replace(both, alarm=alarm) if alarm.state == "cleared" else both


def _pruned(of_gateway: dict[str, Standing], cause: str) -> dict[str, Standing]:
    """Forget the oldest alarms of a cause that are over, and where too many claim to stand, the oldest of those."""
    same = [key for key, known in of_gateway.items() if known.alarm.cause == cause]
    first_to_go = sorted(same, key=lambda key: of_gateway[key].active)
    surplus = set(first_to_go[: max(len(same) - KEPT, 0)])
    return {key: known for key, known in of_gateway.items() if key not in surplus}


def active(alarms: Alarms, gateway: str) -> list[Standing]:
    """Return the alarms of a gateway that stand, the latest last."""
    standing = [known for known in alarms.get(gateway, {}).values() if known.active]
    return sorted(standing, key=_age)


def current(alarms: Alarms, gateway: str) -> dict[str, Standing]:
    """Return, for each cause of a gateway, the alarm that says how it is now: one that stands, else the last to end."""
    ordered = sorted(alarms.get(gateway, {}).values(), key=lambda known: (known.active, *_age(known)))
    return {known.alarm.cause: known for known in ordered}


def _age(known: Standing) -> tuple[int, int, str]:
    return (known.onset_ns if known.active else known.alarm.t_ns, known.alarm.onset_ns, known.alarm.id)


def restored(rows: Iterable[dict[str, Any]]) -> Alarms:
    """Return what is known of alarms from their rows in the store, given in the order they were received."""
    alarms: Alarms = {}
    for row in rows:
        said = {name: row[name] for name in ROW}
        for state in ("raised", "cleared"):
            if row[f"{state}_ns"] is not None:
                alarm = Alarm.model_validate({**said, "state": state, "t_ns": row[f"{state}_ns"]})
                alarms, _, _ = take(alarms, row["gateway"], alarm, row["received_ns"])
    return alarms
