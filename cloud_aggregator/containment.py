"""An error while a message of one gateway is handled stops that gateway, and nobody else.

What a gateway may send is checked before it is used, so an exception in between is a defect of ours that its message
has found. The state is that of before the message. The gateway gets an answer where the protocol has one, and the log
its name. After `FAULTS_MAX` of them nothing more of it is handled for `QUARANTINE_S`, and an alarm says so; then it has
one more try. What is retained comes again after a restart, and is contained again.
"""

from __future__ import annotations

from traceback import extract_tb

from cloud_aggregator import alarms
from cloud_aggregator.events import Effect, Heard, Log, Publish
from cloud_aggregator.state import Faults, State, topic
from config import topics
from config.loss_messages import Tombstone
from config.messages import Alarm, MessageError, Receipt
from models.records import replace

NS = 1_000_000_000
FAULTS_MAX = 8  # before a gateway is quarantined
QUARANTINE_S = 3_600.0
CAUSE = "identity-quarantined"
SHOWN = 200  # characters of an error
Result = tuple[State, list[Effect]]


def is_quarantined(state: State, gateway: str) -> bool:
    """Tell whether nothing of a gateway is handled now."""
    faults = state.faults.get(gateway, Faults())
    return faults.count >= FAULTS_MAX and 0 <= state.now_ns - faults.last_ns < QUARANTINE_S * NS


def contain(state: State, message: Heard, error: Exception) -> Result:
    """Return the state of before a message, and what is told of the error that it led to."""
    where = topics.parse(message.topic)
    faults = Faults(state.faults.get(where.gateway, Faults()).count + 1, state.now_ns)
    state = replace(state, faults={**state.faults, where.gateway: faults})
    last = extract_tb(error.__traceback__)[-1]
    at = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    what = f"{type(error).__name__} at {at}: {str(error)[:SHOWN]!r}"
    text = f"{where.gateway}: a message of channel {where.channel} could not be handled ({what}); error {faults.count}"
    state, told = _tell(state, where.gateway, "raised") if faults.count == FAULTS_MAX else (state, [])
    return state, [Log("warning", text), *_answer(state, where, message.payload), *told]


def release(state: State) -> Result:
    """End the quarantines that have lasted long enough: the next error begins another."""
    effects: list[Effect] = []
    for gateway, faults in state.faults.items():
        if faults.count >= FAULTS_MAX and not is_quarantined(state, gateway):
            state = replace(state, faults={**state.faults, gateway: replace(faults, count=FAULTS_MAX - 1)})
            state, told = _tell(state, gateway, "cleared")
            effects += told
    return state, effects


def _answer(state: State, where: topics.Topic, payload: bytes) -> list[Effect]:
    """Return the refusal of what its sender would otherwise send again without end."""
    item = where.item
    try:
        if where.channel == "alarm":
            item = Alarm.from_bytes(payload).item
        elif where.channel == "tombstone":
            item = Tombstone.from_bytes(payload).item
        elif where.channel not in ("update", "telemetry"):
            return []
    except MessageError:
        return []
    receipt = Receipt(accepted=False, reason="the aggregator failed at it; its log says more")
    return [Publish(topic(state, where.gateway, "receipt", item), receipt.to_bytes())]


def _tell(state: State, gateway: str, change: str) -> Result:
    begun_ns = state.faults[gateway].last_ns
    text = f"{FAULTS_MAX} of its messages led to errors; nothing of it is handled for {QUARANTINE_S:g} s"
    alarm = Alarm.model_validate(
        {
            "id": f"{gateway}.{CAUSE}.{begun_ns}",
            "cause": CAUSE,
            "kind": "sensor",
            "state": change,
            "severity": "major",
            "text": text if change == "raised" else "its messages are handled again",
            "onset_ns": begun_ns,
            "t_ns": state.now_ns,
        }
    )
    return alarms.taken(state, gateway, alarm)
