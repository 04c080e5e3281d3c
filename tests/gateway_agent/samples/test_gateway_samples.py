"""Raw samples at a gateway: held in memory alone while all is well, kept around an anomaly, sent on a signed request.

Goal: the clip is what the sensors sent, bit by bit, and its times are theirs; whoever is not the site gets nothing;
memory, the file and what is written in a day are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedgate.cloud_aggregator.context import sign_message
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Alarm, Receipt
from fedgate.config.protocol.samples import (
    Clip,
    Piece,
    SampleRefusal,
    SampleRequest,
    decode_clip,
    name_clip,
    name_refusal,
)
from fedgate.config.protocol.transfer import parse_chunk
from fedgate.config.settings.samples import CLIP_BYTES_MAX, SamplesTable
from fedgate.gateway_agent.events import (
    SAMPLES_PRIORITY,
    TELEMETRY_PRIORITY,
    ClipRead,
    ClockSet,
    Connection,
    Durable,
    Effect,
    Enqueue,
    Item,
    KeepClip,
    Log,
    ReadClip,
    RecordSamples,
    Save,
)
from fedgate.gateway_agent.outbox import outbox as queue
from fedgate.gateway_agent.outbox.outbox import count_held_bytes
from fedgate.gateway_agent.runtime.clip_file import ClipFile
from fedgate.gateway_agent.samples import samples as raw
from fedgate.gateway_agent.samples.ring_layout import SLOT_BYTES
from fedgate.gateway_agent.samples.samples import SAMPLES, Samples
from fedgate.gateway_agent.state import State, to_store
from fedgate.models.arrays import Array
from fedgate.models.time_units import DAY_NS, NS
from tests.gateway_agent.deployment.test_gateway_models import in_force
from tests.support.agents import ME, TICK, after, heard, kinds, sent
from tests.support.sites import FEATURES, KEY, SITE, T0_NS, Shelf, agent, frame, gateway_settings, samples

ON: dict[str, Any] = {"samples": {"before_s": 3.0, "after_s": 2.0}}
START_S, RATE_HZ = 200.0, float(FEATURES["rate_hz"])
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
ALARM_ID = "north.anomaly.1.boot"


def watching(**tables: Any) -> State:
    state = in_force(**{**ON, **tables})
    return replace(state, context=replace(state.context, uptime_ns=T0_NS + round(START_S * NS)))


def feed(state: State, values: Array, at_s: float) -> tuple[State, list[Effect]]:
    """Take in samples, a second in each frame."""
    effects, each = list[Effect](), round(RATE_HZ)
    for place in range(0, len(values), each):
        now_ns = T0_NS + round((at_s + (place + each) / RATE_HZ) * NS)
        heard_now = heard("sample", "deck", frame(values[place : place + each], at_s + place / RATE_HZ))
        state, more = after(state, heard_now, now_ns=now_ns)
        effects += more
    return state, effects


def alarmed(state: State, *, seconds_after: int = 4) -> tuple[State, list[Effect], Array]:
    values = np.concatenate([samples(0, 6), samples(4, 1 + seconds_after, 50.0)])
    return *feed(state, values, START_S), values


def clips(effects: Sequence[Any]) -> list[Clip]:
    return [decode_clip(one.body, CLIP_BYTES_MAX) for one in kinds(effects, KeepClip)]


def raised(effects: list[Effect]) -> Alarm:
    queued = [one for one in kinds(effects, Enqueue) if "/alarm/" in one.item.topic]
    return Alarm.from_bytes(queued[0].item.payloads[0])


def asked(alarm: str, number: int = 1, key: Ed25519PrivateKey = KEY, audience: str = f"{SITE}/{ME}") -> Any:
    request = sign_message(SampleRequest(alarm=alarm, number=number), key, audience, T0_NS)
    return heard("fetch", name_clip(alarm, number), request.to_bytes())


def test_around_an_anomaly_the_samples_are_kept_as_they_came() -> None:
    _, effects, values = alarmed(watching())
    alarm, (clip,) = raised(effects), clips(effects)
    assert (clip.meta.alarm, clip.meta.cause, clip.meta.t_ns) == (alarm.id, "anomaly", alarm.t_ns)
    ((first, *_),) = pieces = clip.pieces
    found = np.concatenate([piece.values for piece in pieces[0]])
    begin = round(((first.t_ns - T0_NS) / NS - START_S) * RATE_HZ)
    np.testing.assert_array_equal(found, values[begin : begin + len(found)].astype(np.float32))
    assert found.dtype == np.float32 and first.rate_hz == RATE_HZ
    assert alarm.t_ns - 4 * NS <= first.t_ns <= alarm.t_ns - 3 * NS  # whole frames
    assert alarm.t_ns + 2 * NS <= pieces[0][-1].end_ns <= alarm.t_ns + 4 * NS
    assert clip.meta.cut == "" and clip.meta.sources[0].channels[0].name == "load"


def test_while_all_is_well_nothing_is_written_and_memory_stays_as_it_is() -> None:
    state, effects = feed(watching(), samples(0, 30), START_S)
    assert not kinds(effects, KeepClip) and SAMPLES not in {one.key for one in kinds(effects, Save)}
    held = state.samples.held["deck"]
    assert len(held) <= 3 + 1 + 2 and state.samples.held_bytes == raw._count_bytes(held)


def test_without_the_table_nothing_is_held() -> None:
    state, effects, _ = alarmed(in_force())
    assert state.samples.held == {} and not state.samples.recordings
    assert not kinds(effects, KeepClip) and raised(effects).state == "raised"


@pytest.mark.parametrize(
    "sensor", [np.arange(-9, 9, dtype=np.int32), np.arange(9, dtype=np.int8), np.array([0.1, np.nan, -0.0])]
)
def test_values_keep_their_type_and_their_bits_and_the_gain_is_told(sensor: Array) -> None:
    source = {"name": "deck", "kind": "frames", "channels": [{"role": "load", "unit": "kN", "gain": 0.5, "bias": 2}]}
    state = agent(gateway_settings(source=[source], **ON), Shelf())
    payload = wire.encode({"values": sensor[:, None]}, {"t_ns": T0_NS, "rate_hz": RATE_HZ})
    state, _ = after(state, heard("sample", "deck", payload))
    ((_, piece),) = state.samples.held["deck"]
    assert piece.values.dtype == sensor.dtype and piece.values.tobytes() == sensor.tobytes()
    _, effects = raw.begin_recording(state.samples, state.context, wanted(T0_NS))
    assert effects == []
    _, ended = raw.end_all(replace(state.samples, recordings=(raw.Recording(wanted(T0_NS), 0),)), state.context, "x")
    (clip,) = clips(ended)
    channel = clip.meta.sources[0].channels[0]
    assert (channel.unit, channel.gain, channel.bias, channel.is_in_unit) == ("kN", 0.5, 2.0, False)
    assert clip.pieces[0][0].values.tobytes() == sensor.tobytes() and clip.meta.cut == "x"


def wanted(t_ns: int, alarm: str = ALARM_ID) -> RecordSamples:
    return RecordSamples(alarm, "anomaly", t_ns, t_ns)


def test_a_gap_of_the_sensor_stays_a_gap() -> None:
    state = watching()
    for at_s in (0.0, 1.0, 2.5):
        state, _ = feed(state, samples(0, 1), START_S + at_s)
    at_ns = T0_NS + round((START_S + 3.5) * NS)
    state = replace(state, samples=raw.begin_recording(state.samples, state.context, wanted(at_ns))[0])
    _, effects = feed(state, samples(0, 6), START_S + 3.5)
    (clip,) = clips(effects)
    times = [(piece.t_ns - T0_NS) / NS - START_S for piece in clip.pieces[0][:4]]
    assert times == [0.0, 1.0, 2.5, 3.5]


@pytest.mark.soak
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(-2_000, 2_000)), max_size=60))
def test_memory_is_bounded_whatever_times_and_lengths_a_sensor_sends(sent_pieces: list[tuple[int, int]]) -> None:
    table = SamplesTable(max_clip_bytes=64 * 1024, max_bytes=128 * 1024)
    context = watching().context
    context = replace(context, settings=context.settings.model_copy(update={"samples": table}))
    held = Samples()
    for rows, t_s in sent_pieces:
        held, _ = raw.note_piece(held, context, "deck", Piece(t_s * NS, 10.0, np.zeros((rows, 24))))
        assert held.held_bytes == raw._count_bytes(held.held["deck"]) <= 32 * 1024


TWO_SOURCES = [{"name": name, "kind": "frames", "channels": [{"role": name}]} for name in ("deck", "air")]
ODD_TIMES_S: dict[str, Callable[[int], int]] = {
    "future": lambda at_s: 10**6,
    "past": lambda at_s: -(10**6),
    "either": lambda at_s: (-1) ** at_s * 10**6,
}
ODD_TIMES_S |= {"future once": lambda at_s: 10**6 if at_s < 20 else at_s}


@pytest.mark.parametrize("rows", [5, 400], ids=["as much", "more"])
@pytest.mark.parametrize("kind", ODD_TIMES_S)
def test_a_source_that_sends_odd_times_or_much_harms_its_own_samples_alone(kind: str, rows: int) -> None:
    table = SamplesTable(before_s=60.0, after_s=60.0, max_clip_bytes=64 * 1024, max_bytes=128 * 1024)
    features = {**FEATURES, "channels": ["deck", "air"]}
    context = agent(gateway_settings(source=TWO_SOURCES, features=features), Shelf()).context
    context = replace(context, settings=context.settings.model_copy(update={"samples": table}))
    held, values = Samples(), np.zeros((rows, 1))
    for at_s in range(400):
        context = replace(context, uptime_ns=T0_NS + at_s * NS)
        for source, t_s, sent_now in (("air", ODD_TIMES_S[kind](at_s), values), ("deck", at_s, np.zeros((5, 1)))):
            held, _ = raw.note_piece(held, context, source, Piece(T0_NS + t_s * NS, float(rows), sent_now))
        assert held.held_bytes <= 32 * 1024 and len(held.held["air"]) <= 61 + FEATURES["window_s"]
        times = [one.piece.t_ns for one in held.held["deck"]]
        assert times == [T0_NS + t_s * NS for t_s in range(at_s - len(times) + 1, at_s + 1)]
        assert len(times) >= min(at_s + 1, 61)


@pytest.mark.soak
def test_a_clip_that_grows_too_long_is_cut_and_says_so() -> None:
    small = {"samples": {"before_s": 1.0, "after_s": 3_000.0, "max_clip_bytes": 65_536, "max_bytes": 131_072}}
    state, effects, _ = alarmed(watching(**small), seconds_after=250)
    (clip,) = clips(effects)
    assert clip.meta.cut == "longer than max_clip_bytes = 65536" and not state.samples.recordings
    assert len(kinds(effects, KeepClip)[0].body) < 70_000


def test_a_source_that_falls_silent_is_not_waited_for_without_end() -> None:
    state, effects, _ = alarmed(watching(), seconds_after=0)
    assert len(state.samples.recordings) == 1 and not clips(effects)
    state, effects = after(state, TICK, now_ns=state.context.uptime_ns + 33 * NS)
    assert len(clips(effects)) == 1 and not state.samples.recordings


def test_what_is_written_in_a_day_is_bounded_also_over_a_restart() -> None:
    shelf, state, kept = Shelf(), watching(samples={**ON["samples"], "bytes_per_day": 65_536}), 0

    def begin(state: State, number: int) -> tuple[State, list[Effect]]:
        one, piece = (
            raw.Recording(wanted(state.context.now_ns, f"a{number}"), 0),
            Piece(state.context.now_ns, 10.0, BIG),
        )
        held = replace(state.samples, recordings=(one,), held={"deck": (raw.HeldPiece(0, piece),)})
        return after(replace(state, samples=held), TICK)

    for number in range(4):
        state, effects = begin(state, number)
        shelf.commit(effects)
        kept += len(kinds(effects, KeepClip))
    assert kept == 2 and state.samples.day.written_bytes == 2 * 6 * SLOT_BYTES  # 20,000 bytes and what is around them
    assert any("samples.bytes_per_day is 65536" in one.text for one in kinds(effects, Log))
    again = agent(state.context.settings, shelf, state.context.uptime_ns)
    assert again.samples.day == state.samples.day
    assert not kinds(begin(again, 9)[1], KeepClip)
    later = replace(again, context=replace(again.context, uptime_ns=again.context.uptime_ns + DAY_NS))
    assert kinds(begin(later, 10)[1], KeepClip)


BIG = np.zeros((2_500, 1))


@pytest.mark.parametrize("store", [{"problem": "disk-full"}, {"written_bytes": 2**40}])
def test_where_the_disk_is_full_or_the_flash_has_had_enough_no_clip_is_kept_and_one_is_sent(
    store: dict[str, Any],
) -> None:
    state = watching()
    state = replace(state, context=replace(state.context, store=replace(state.context.store, **store)))
    _, effects, _ = alarmed(state)
    assert not clips(effects) and any("of samples are not kept" in one.text for one in kinds(effects, Log))
    assert after(state, asked(ALARM_ID))[1] == [ReadClip(ALARM_ID, 1)]  # which writes nothing


def refusals(state: State) -> list[SampleRefusal]:
    return [
        SampleRefusal.from_bytes(item.payloads[0])
        for name, item in state.outbox.items.items()
        if name.endswith(".refused")
    ]


def test_after_the_clock_was_set_samples_of_before_are_in_no_clip() -> None:
    state, _, _ = alarmed(watching(), seconds_after=0)
    state, effects = after(state, ClockSet(5 * NS))
    assert [one.meta.cut for one in clips(effects)] == ["the wall clock was set"] and state.samples.held == {}


def test_a_request_of_the_site_brings_the_clip_behind_everything_else_and_once() -> None:
    state, effects, _ = alarmed(watching())
    (kept,) = kinds(effects, KeepClip)
    state, effects = after(state, asked(kept.alarm))
    assert effects == [ReadClip(kept.alarm, 1)]
    assert after(state, asked(kept.alarm))[1] == []
    state = replace(state, context=replace(state.context, line_payload_bytes=1_024))
    state, effects = after(state, ClipRead(kept.alarm, 1, kept.body))
    name, item = name_clip(kept.alarm, 1), state.outbox.items[name_clip(kept.alarm, 1)]
    assert item.priority == SAMPLES_PRIORITY == max(one.priority for one in state.outbox.items.values())
    assert b"".join(parse_chunk(one)[1] for one in item.payloads) == kept.body
    assert after(state, asked(kept.alarm, 2))[1] == []  # it is on its way
    for other in [other for other in state.outbox.items if other != name]:
        state, effects = after(state, heard("receipt", other, Receipt(accepted=True).to_bytes()))
    state, effects = after(state, TICK, now_ns=state.context.uptime_ns + 600 * NS)
    state, effects = after(state, heard("resend", name, b'{"missing": [1]}'))
    assert [one.payload for one in sent(effects, "samples")] == [item.payloads[1]]
    state, _ = after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))
    assert name not in state.outbox.items and after(state, asked(kept.alarm))[1] == []
    assert after(state, asked(kept.alarm, 2))[1] == [ReadClip(kept.alarm, 2)]  # another order


def test_a_clip_that_waits_is_written_nowhere_again_and_asked_for_again_after_a_restart() -> None:
    state, effects, _ = alarmed(watching())
    (kept,) = kinds(effects, KeepClip)
    state, _ = after(state, Connection(False), Connection(True))
    state = replace(state, outbox=replace(state.outbox, bulk_ns=0))
    state, _ = after(state, asked(kept.alarm))
    state, effects = after(state, ClipRead(kept.alarm, 1, kept.body))
    assert not [one for one in effects if isinstance(one, Durable)] and len(sent(effects, "samples")) == 1
    state, effects = after(state, asked("another", 2))
    assert effects == []  # one at a time is in memory
    held = name_clip(kept.alarm, 1)
    assert held in state.outbox.items and held not in to_store(state).outbox
    assert {name for name in state.outbox.items if name != held} == to_store(state).outbox.keys()
    shelf = Shelf(outbox=to_store(state).outbox)
    again = agent(gateway_settings(**ON), shelf)
    assert after(again, asked(kept.alarm))[1] == [ReadClip(kept.alarm, 1)]
    assert refusals(after(agent(gateway_settings(), shelf), asked(kept.alarm))[0])  # settings that allow none any more


def test_a_clip_that_waits_takes_no_space_of_the_store() -> None:
    state, effects, _ = alarmed(watching())
    (kept,) = kinds(effects, KeepClip)
    before = count_held_bytes(state.outbox.items)
    state, _ = after(after(state, asked(kept.alarm))[0], ClipRead(kept.alarm, 1, bytes(2**20)))
    assert count_held_bytes(state.outbox.items) == before
    store = state.context.settings.store.model_copy(update={"max_bytes": before})
    small = state.context.settings.model_copy(update={"store": store})
    state = replace(state, context=replace(state.context, settings=small))
    telemetry = Item("x", (bytes(9),), retain=False, priority=TELEMETRY_PRIORITY)
    outbox, _ = queue.enqueue(state.outbox, state.context, "t", telemetry)
    assert name_clip(kept.alarm, 1) in outbox.items and outbox.dropped == {"telemetry": 1}


def test_a_gateway_that_keeps_no_samples_refuses_and_says_so() -> None:
    state, effects = after(in_force(), asked(ALARM_ID))
    reason = "this gateway keeps no raw samples: its settings have no table [samples]"
    assert refusals(state) == [SampleRefusal(alarm=ALARM_ID, number=1, reason=reason)]
    assert name_refusal(ALARM_ID, 1) in state.outbox.items and after(state, asked(ALARM_ID))[1] == []
    assert not kinds(effects, Enqueue)
    for number in range(100):
        state, _ = after(state, asked(f"a{number}"))
    assert len(refusals(state)) == 32


def test_a_receipt_for_the_answer_to_one_request_does_not_settle_that_to_another() -> None:
    state = in_force()
    for number in (2, 1, 2):
        state, _ = after(state, asked(ALARM_ID, number))
    state, _ = after(state, heard("receipt", name_refusal(ALARM_ID, 1), Receipt(accepted=True).to_bytes()))
    assert [one.number for one in refusals(state)] == [2]


def test_what_is_not_here_is_refused() -> None:
    state, _ = after(watching(), asked(ALARM_ID))
    state, _ = after(state, ClipRead(ALARM_ID, 1, None, "this gateway has no samples of this alarm, or no more"))
    assert refusals(state)[0].reason.startswith("this gateway has no samples")


@pytest.mark.parametrize(
    "how", [{"key": STRANGER}, {"audience": f"{SITE}/all"}, {"audience": f"{SITE}/east"}, {"audience": f"other/{ME}"}]
)
def test_what_the_site_has_not_signed_for_this_gateway_brings_nothing(how: dict[str, Any]) -> None:
    state, effects = after(watching(), asked(ALARM_ID, **how))
    assert [type(one) for one in effects] == [Log] and state.messages_dropped == 1


def test_a_clip_that_still_comes_in_is_sent_at_a_later_request() -> None:
    state, effects, _ = alarmed(watching(), seconds_after=0)
    alarm = raised(effects).id
    state, effects = after(state, asked(alarm))
    assert not kinds(effects, ReadClip) and not refusals(state)
    state, effects = after(state, TICK, now_ns=state.context.uptime_ns + 33 * NS)
    assert kinds(effects, KeepClip) and kinds(after(state, asked(alarm))[1], ReadClip)


def test_an_error_of_the_file_stops_nothing(tmp_path: Path) -> None:
    clip_file = ClipFile(tmp_path / "none" / "g.db", SamplesTable())
    other = Log("info", "other")
    effects, events = clip_file.carry_out([KeepClip("a", b"x"), other, ReadClip("a", 1)])
    assert effects[1] is other and "are not kept" in str(effects[0])
    (read,) = events
    assert isinstance(read, ClipRead) and read.body is None and "cannot be read" in read.problem
    assert clip_file.take_written_bytes() == 0
