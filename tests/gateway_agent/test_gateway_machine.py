"""The agent as a function: what it does with messages of every kind, good, bad, late, repeated and made up.

Goal: nothing that arrives can stop it, make it forget or fill its memory. The way of models is in
`test_gateway_models`, that of samples in `test_gateway_sensors`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedgate.cloud_aggregator.context import sign_message
from fedgate.config.protocol import wire
from fedgate.config.protocol.backoff import JITTER
from fedgate.config.protocol.messages import Receipt, RoundOpen, Status, Want, name_audience
from fedgate.config.protocol.topics import CHANNELS
from fedgate.config.protocol.transfer import ASK_MAX, describe, split
from fedgate.gateway_agent.events import (
    Connection,
    Dequeue,
    Effect,
    Enqueue,
    Log,
    Received,
    Save,
    Train,
    Trained,
)
from fedgate.gateway_agent.runtime.training_worker import answer
from fedgate.gateway_agent.state import BaselineError, State
from fedgate.gateway_agent.status import status
from fedgate.gateway_agent.training.training import NUMBER, RETRY_S, _hide_numbers, save_counted
from fedgate.models.arrays import COUNTED, joined, parted
from fedgate.models.arrays import FEATURES as X
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.federated import build
from fedgate.models.federated.secure_aggregation.ring import RingError
from fedgate.models.time_units import NS
from tests.support.agents import LIMIT, ME, TICK, after, chunks, commissioned, heard, kinds, sent
from tests.support.masked_rounds import took_part
from tests.support.sites import (
    FEATURES,
    KEY,
    SITE,
    T0_NS,
    WINDOWS,
    Shelf,
    agent,
    frame,
    gateway_settings,
    samples,
    topic,
)

SHARED = wire.encode({})


def invitation(round_index: int = 0, shared: bytes = SHARED, **change: Any) -> bytes:
    message = RoundOpen(
        run="run",
        round_index=round_index,
        phase=0,
        algorithm="support-vector-election",
        settings={},
        seed=0,
        features=FeatureSpec.model_validate(FEATURES),
        shared=describe(shared, LIMIT),
    )
    return signed(message.model_copy(update=change)).to_bytes()


def signed(message: RoundOpen) -> RoundOpen:
    return sign_message(message, KEY, name_audience(SITE, "all"), T0_NS)


def invited(state: State, round_index: int = 0, **change: Any) -> tuple[State, list[Effect]]:
    return after(state, heard("round", "open", invitation(round_index, **change), "all"), *chunks(SHARED))


OPEN = invited(commissioned())[0]
FUZZED = {"fresh": agent(gateway_settings(), Shelf()), "commissioned": commissioned(), "training": OPEN}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
GOOD = {
    "round": invitation(1),
    "receipt": Receipt(accepted=True).to_bytes(),
    "resend": Want(missing=(0,)).to_bytes(),
    "chunk": split(b"x" * 2_000, LIMIT)[0].split(b"\n")[0],
}


@pytest.mark.parametrize("start", FUZZED)
@given(data=st.data())
def test_random_bytes_on_any_channel_are_dropped_and_counted(start: str, data: st.DataObject) -> None:
    state = FUZZED[start]
    channel = data.draw(st.sampled_from(sorted(CHANNELS)))
    payload = data.draw(st.binary(min_size=1, max_size=60))
    assume(not payload.lstrip().startswith(b"{"))  # an object with unknown keys is a request for all chunks
    state, effects = after(state, heard(channel, data.draw(st.sampled_from(["deck", "open", "a" * 64])), payload))
    assert state.messages_dropped == 1
    assert [effect.level for effect in kinds(effects, Log)] == ["warning"]
    assert effects == kinds(effects, Log)


@given(data=st.data())
def test_a_message_with_any_value_anywhere_never_stops_the_agent(data: st.DataObject) -> None:
    channel = data.draw(st.sampled_from(sorted(GOOD)))
    document = json.loads(GOOD[channel])
    for key in data.draw(st.lists(st.sampled_from(sorted(document)), min_size=1, max_size=2)):
        document[key] = data.draw(JSON)
    payload = json.dumps(document).encode() + (b"\nbytes" if channel == "chunk" else b"")
    state, _ = after(FUZZED["commissioned"], heard(channel, "open", payload, "all"), TICK, TICK)
    after(state, *chunks(SHARED), TICK)


@pytest.mark.parametrize(
    "where",
    ["", "fedgate", f"fedgate/v1/{SITE}/{ME}/sample", f"fedgate/v1/{SITE}/{ME}/nothing/x", "a/b/c/d/e/f", "zigbee"],
)
def test_a_topic_that_is_not_ours_is_dropped(where: str) -> None:
    state, effects = after(FUZZED["commissioned"], Received(where, b"{}"))
    assert state.messages_dropped == 1 and "dropped" in kinds(effects, Log)[0].text


def test_messages_for_others_are_dropped() -> None:
    """A broker may send what nobody subscribed to, and two sites may share one."""
    state = FUZZED["commissioned"]
    for where in (topic("south", "sample", "deck"), f"fedgate/v1/elsewhere/{ME}/sample/deck"):
        state, effects = after(state, Received(where, frame(samples(1, 5))))
        assert "it is for gateway" in kinds(effects, Log)[0].text
    assert state.messages_dropped == 2 and status(state).dropped == {"message": 2}


def test_a_round_is_answered_once_and_settled_by_its_receipt() -> None:
    state, effects = invited(commissioned())
    (train,) = kinds(effects, Train)
    state, effects = invited(state)
    assert not kinds(effects, Train)
    state, effects = after(state, Trained(answer(train.job)))
    assert [type(effect) for effect in effects[:3]] == [Save, Save, Enqueue] and sent(effects, "update")
    assert not state.training.is_counted
    (name,) = state.outbox.items
    state, effects = invited(state)
    assert not kinds(effects, Train)
    state, effects = after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))
    assert effects == [Dequeue(name), save_counted(state.training)]
    assert not state.outbox.items and state.training.is_counted
    late, _ = after(state, heard("receipt", name, Receipt(accepted=False, reason="late").to_bytes()))
    assert late.context.refusal == ""


@pytest.mark.parametrize(
    ("line_bytes", "most", "expected"),
    [(16_384, 256_000, 16_384), (600_000, 256_000, 256_000), (600_000, 1_024, 1_024)],
)
def test_an_update_is_cut_as_the_line_carries_it_and_the_settings_allow(
    line_bytes: int, most: int, expected: int
) -> None:
    state, _ = invited(commissioned(limits={"max_payload_bytes": most}))
    state, _ = after(state, replace(TICK, payload_bytes=line_bytes))
    trained = Trained(wire.encode(joined({"update": {"x": np.random.default_rng(0).normal(size=80_000)}})))
    state, _ = after(state, trained)
    (item,) = state.outbox.items.values()
    sizes = [len(payload) for payload in item.payloads]
    assert 0.8 * expected < max(sizes) <= expected
    state, _ = after(state, replace(TICK, payload_bytes=32_768))  # which changes nothing of it
    assert next(iter(state.outbox.items.values())) == item


@pytest.mark.parametrize("replayed", [b"", invitation(0, cohort=("south",))], ids=["no round", "an earlier round"])
def test_a_gateway_does_not_refuse_a_round_that_a_replayed_invitation_made_it_forget(replayed: bytes) -> None:
    """Who refuses the open round is not reminded of it."""
    state, _ = after(invited(commissioned(), round_index=1)[0], Trained(None, "no memory"))
    assert status(state).refused_round == "run/1"
    state, _ = after(state, heard("round", "open", replayed, "all"))
    assert status(state).refused_round == ""
    state, effects = invited(state, round_index=1)  # the aggregator reminds
    assert not kinds(effects, Train) and status(state).refused_round == "run/1"
    retry_ns = state.context.now_ns + round((RETRY_S + 1) * NS)
    assert kinds(after(state, TICK, *chunks(SHARED), now_ns=retry_ns)[1], Train)


def test_an_answered_round_stays_answered_after_a_restart_and_its_update_is_still_there() -> None:
    shelf = Shelf()
    state, effects = invited(commissioned(shelf))
    state, effects = after(state, Trained(answer(kinds(effects, Train)[0].job)))
    shelf.commit(effects)
    again, _ = after(agent(gateway_settings(), shelf), Connection(True))
    again, effects = invited(again)
    assert not kinds(effects, Train) and again.outbox.items == state.outbox.items
    assert not kinds(invited(commissioned(shelf), round_index=0)[1], Train)
    assert not kinds(invited(again, round_index=1)[1], Train)  # nobody knows yet whether its last update was counted
    again, _ = after(
        again, heard("receipt", next(iter(again.outbox.items)), Receipt(accepted=False, reason="late").to_bytes())
    )
    _, effects = invited(again, round_index=1)
    assert not parted(wire.decode(kinds(effects, Train)[0].job)[0])["data"][COUNTED]


def test_a_refused_update_is_settled_and_the_reason_stands_in_the_status_until_one_is_accepted() -> None:
    state, effects = invited(commissioned())
    for reason in ("round 0 is over", ""):
        state, effects = after(state, Trained(answer(kinds(effects, Train)[0].job)))
        (name,) = state.outbox.items
        state, _ = after(state, heard("receipt", name, Receipt(accepted=not reason, reason=reason).to_bytes()))
        assert not state.outbox.items and status(state).refusal == reason
        state, effects = invited(state, round_index=1)


def trained_with(state: State, shelf: Shelf, texts: list[str], **change: Any) -> tuple[State, list[Effect]]:
    """Return the state after a round whose training had these remarks and whose update was counted."""
    state, _ = invited(state, **change)
    state, effects = after(state, Trained(wire.encode(joined({"update": {"x": np.ones(2)}}), {"remarks": texts})))
    shelf.commit(effects)
    state, settled = after(state, heard("receipt", next(iter(state.outbox.items)), Receipt(accepted=True).to_bytes()))
    shelf.commit(settled)
    return state, effects


def test_what_a_training_warned_of_stands_in_the_status_until_a_later_one_has_no_such_remark() -> None:
    """An operator reads the status, not a gateway's log; receipts and restarts take nothing of it away."""
    shelf, shown = Shelf(), ""
    state = commissioned(shelf)
    long = f"round 0: a; b; round 1: {'c' * 491}"
    steps = [(0, ["a", "b"], "round 0: a; b"), (1, ["c" * 999], long), (2, [], long), (1, [], "round 0: a; b")]
    for index, (phase, texts, expected) in enumerate([*steps, (0, [], "")]):
        state, effects = trained_with(state, shelf, texts, round_index=index, phase=phase)
        logged = [effect.text for effect in kinds(effects, Log) if effect.level == "warning"]
        assert logged == [f"round {index}: {text}" for text in texts]
        told = [Status.from_bytes(effect.payload).training_remarks for effect in sent(effects, "status")]
        assert told == [expected] * (expected != shown)
        shown = expected
        assert [status(one).training_remarks for one in (state, agent(gateway_settings(), shelf))] == [
            shown,
            shown,
        ]


def test_another_training_begins_without_remarks() -> None:
    shelf = Shelf()
    state, _ = trained_with(commissioned(shelf), shelf, ["a"])
    state, _ = trained_with(state, shelf, [], run="another", phase=1)
    assert status(state).training_remarks == ""


LENGTHS = "RingError: weights: values of size 3.71e-06 given, expected at least 100 times masking.quantum (9.54e-07)"
FIT = "RingError: weights: values of size … given, expected at least … times masking.quantum (…)"
CLIPPED = {"clip": 1.0, "noise_multiplier": 1.0, "epsilon": 9.0}


@pytest.mark.parametrize("hiding", [{"masking": {}}, {"privacy": CLIPPED}, {"masking": {}, "privacy": CLIPPED}])
def test_under_masks_or_privacy_a_status_tells_the_cause_and_no_number(hiding: dict[str, Any]) -> None:
    """Masks hid an update whose size stood in the clear in the status. The log of the gateway itself still says it."""
    state, _ = invited(commissioned(), settings=hiding)
    state, effects = after(state, Trained(None, LENGTHS))
    assert status(state).refusal == f"round 0: training failed: {FIT}"
    assert [line.text for line in kinds(effects, Log)][-1] == f"round 0: {LENGTHS}"
    assert not any("3.71" in repr(effect) for effect in effects if not isinstance(effect, Log))
    shelf = Shelf()
    state, _ = trained_with(commissioned(shelf), shelf, [f"{LENGTHS}; 17 of 60 rows, -2.5 to +3"], settings=hiding)
    assert status(state).training_remarks == f"round 0: {FIT}; … of … rows, … to …"


@pytest.mark.parametrize("open_to_all", [{}, {"masking": None, "privacy": None}])
def test_where_nothing_is_hidden_a_status_tells_the_numbers(open_to_all: dict[str, Any]) -> None:
    state, _ = invited(commissioned(), settings=open_to_all)
    state, effects = after(state, Trained(None, LENGTHS))
    assert status(state).refusal == f"round 0: training failed: {LENGTHS}"
    assert sum(LENGTHS in line.text for line in kinds(effects, Log)) == 1


FORMS = ("{:g}", "{:.17g}", "{:.3e}", "{!r}")


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.sampled_from(FORMS))
def test_no_digit_is_left_of_any_number(value: float, count: int, form: str) -> None:
    text = f"a length of {form.format(value)}, in {count:_} of {count:,} rows ({np.array([value, count])})."
    found = _hide_numbers(RoundOpen.from_bytes(invitation(settings={"masking": {"fewest": 3}})), text)
    assert not any(letter.isdigit() for letter in found) and found.startswith("a length of …, in … of … rows")


def test_small_sums_under_masks_tell_the_cloud_no_size() -> None:
    """The child's own words, of rows of a millionth."""
    x = 1e-6 * np.random.default_rng(0).normal(size=(60, 3))
    chosen = {"network": {"units": 5}, "normalisation": "none", "unit": "feature", "masking": {"fewest": 3}}
    algorithm = build("incfed", 3, chosen)
    with pytest.raises(RingError) as raised:
        took_part(algorithm, {name: {X: x} for name in ("a", "b", "c")})
    assert NUMBER.search(str(raised.value))
    state, _ = after(invited(commissioned(), settings=chosen)[0], Trained(None, f"RingError: {raised.value}"))
    found = status(state).refusal.removeprefix("round 0: ")
    assert "training failed: RingError: " in found and not NUMBER.search(found)


@pytest.mark.parametrize("bad", [Trained(None, "no memory"), Trained(b"Segmentation fault"), Trained(b"")])
def test_a_failed_training_is_named_and_tried_again_but_not_soon(bad: Trained) -> None:
    """It may have been a lack of memory; a round that needs this gateway must not wait for ever."""
    state, _ = invited(commissioned())
    state, effects = after(state, bad)
    assert not kinds(effects, Train) and "round 0: training failed" in status(state).refusal
    state, effects = invited(state)
    assert not kinds(effects, Train)
    state, effects = after(state, TICK, now_ns=T0_NS + round((RETRY_S + 1) * NS))
    assert len(kinds(effects, Train)) == 1
    state, effects = invited(after(state, bad)[0], round_index=1)
    assert len(kinds(effects, Train)) == 1  # another round is another try


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": FeatureSpec.model_validate({**FEATURES, "rate_hz": 40.0})}, "round 0: its features differ"),
        ({"shared": b"x" * 5_000}, "round 0: its shared parameters have 5000 bytes, at most 4096"),
    ],
)
def test_a_round_that_is_not_for_this_gateway_is_refused_and_never_in_the_way(
    change: dict[str, Any], words: str
) -> None:
    small = {"max_update_bytes": 4_096}
    state, effects = after(agent(gateway_settings(limits=small), Shelf()), heard("round", "open", invitation(**change)))
    assert words in status(state).refusal
    state, effects = after(state, heard("sample", "deck", frame(samples(1, WINDOWS))))
    assert state.monitor.pipeline.commissioned and not kinds(effects, Train)


def test_an_invitation_with_numbers_that_json_lacks_is_refused() -> None:
    state, effects = invited(commissioned(), settings={"nu": 0.25})
    assert kinds(effects, Train)
    payload = invitation(settings={"nu": 0.25}).replace(b"0.25", b"NaN")
    state, effects = after(commissioned(), heard("round", "open", payload), *chunks(SHARED))
    assert not kinds(effects, Train) and "its signature is not the release key's" in status(state).refusal


def test_an_invitation_that_the_release_key_did_not_sign_takes_nothing_from_this_gateway() -> None:
    greedy = json.loads(invitation(settings={"nu": 0.25})) | {"settings": {"anonymise": False, "nu": 1.0}}
    for document in (greedy, greedy | {"signature": ""}, greedy | {"signature": "no base64"}):
        payload = json.dumps(document).encode()
        state, effects = after(commissioned(), heard("round", "open", payload, "all"), *chunks(SHARED))
        assert not kinds(effects, Train) and "its signature is not the release key's" in status(state).refusal


def test_an_invitation_of_a_round_before_the_answered_one_is_not_answered() -> None:
    state, effects = invited(commissioned(), round_index=5)
    (train,) = kinds(effects, Train)
    state, _ = after(state, Trained(answer(train.job)))
    assert not kinds(invited(state, round_index=4)[1], Train)
    (name,) = state.outbox.items
    state, _ = after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))
    _, effects = invited(state, round_index=6)
    assert parted(wire.decode(kinds(effects, Train)[0].job)[0])["data"][COUNTED]


def test_an_update_of_a_round_that_came_to_nothing_was_not_counted_whatever_its_receipt_says() -> None:
    state, effects = invited(commissioned(), round_index=5)
    (train,) = kinds(effects, Train)
    state, _ = after(state, Trained(answer(train.job)))
    (name,) = state.outbox.items
    state, _ = after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))
    for abandoned, is_counted in (((3, 5), False), ((3, 4), True)):
        _, effects = invited(state, round_index=7, abandoned=abandoned)
        assert parted(wire.decode(kinds(effects, Train)[0].job)[0])["data"][COUNTED] == is_counted


def test_only_those_who_are_asked_answer_and_an_empty_invitation_ends_a_round() -> None:
    state, effects = invited(commissioned(), cohort=("south", "west"))
    assert not kinds(effects, Train)
    assert kinds(invited(state, cohort=("south", ME))[1], Train)
    state, effects = after(commissioned(), heard("round", "open", invitation()), heard("round", "open", b""))
    assert state.training.round is None and state.messages_dropped == 0
    assert not kinds(after(state, *chunks(SHARED))[1], Train)


def test_missing_chunks_are_asked_for_with_growing_patience_and_at_once_after_an_outage() -> None:
    body = b"s" * 200_000
    state, _ = after(commissioned(), heard("round", "open", invitation(shared=body)))
    asked_s, at_s = [], 0
    for at_s in range(1, 40):
        state, effects = after(state, TICK, now_ns=T0_NS + at_s * NS)
        asked_s += [at_s for want in sent(effects, "want") if Want.from_bytes(want.payload).missing == ()]
    pauses_s = np.diff(asked_s)
    assert asked_s[0] <= 2 and len(pauses_s) == 4
    assert all(2**n <= pause <= 2**n * (1 + JITTER) + 1 for n, pause in enumerate(pauses_s.tolist(), 1))
    state, _ = after(state, chunks(body)[1], Connection(False), Connection(True))
    state, effects = after(state, TICK, now_ns=T0_NS + (at_s + 2) * NS)
    (want,) = sent(effects, "want")
    missing = Want.from_bytes(want.payload).missing
    assert missing == (0, *range(2, ASK_MAX + 1)) and len(want.payload) < LIMIT


def test_a_damaged_body_begins_anew_and_is_never_a_dead_end() -> None:
    body = wire.encode({"weights": np.arange(400.0)})
    state, _ = after(commissioned(), heard("round", "open", invitation(shared=body)))
    first, *rest = split(body, LIMIT)
    for damaged in (first[:-1] + b"?", first.split(b"\n", 1)[0] + b"\n" + body):  # another byte; too many bytes
        state, effects = after(state, *[heard("chunk", "x", piece) for piece in (damaged, *rest)])
        assert state.downloads.receiver.damaged >= 1 and not state.downloads.bodies and not kinds(effects, Train)
    state, effects = after(state, *chunks(body), *chunks(body))
    assert len(kinds(effects, Train)) == 1


def test_what_no_round_needs_any_more_is_forgotten_and_strangers_chunks_are_not_kept() -> None:
    state = commissioned()
    for number in range(50):
        state, _ = after(state, heard("round", "open", invitation(number, shared=b"s%d" % number)), TICK)
        assert len(state.downloads.receiver.incoming) == 1
        state, _ = after(state, *chunks(b"stranger%d" % number))
        assert len(state.downloads.receiver.incoming) == 1 and not state.downloads.bodies


def test_a_baseline_of_other_features_is_not_gone_on_with() -> None:
    shelf = Shelf()
    commissioned(shelf)
    with pytest.raises(BaselineError, match=r"other \[features\]; restore that table, or remove the store"):
        agent(gateway_settings(features={**FEATURES, "steps": [{"kind": "rms"}]}), shelf)
    assert agent(gateway_settings(), shelf).monitor.pipeline.commissioned


def test_a_restart_in_the_middle_of_commissioning_goes_on_where_it_was() -> None:
    shelf = Shelf()
    for part in range(4):
        values = samples(part, WINDOWS // 4)
        _, effects = after(agent(gateway_settings(), shelf), heard("sample", "deck", frame(values, part * WINDOWS / 4)))
        shelf.commit(effects)
    assert agent(gateway_settings(), shelf).monitor.pipeline.commissioned and "own" in shelf.blobs


def test_an_answer_that_says_nothing_leaves_the_word_on_the_one_before() -> None:
    """A gateway that was refused and then has nothing to send must not believe that it was counted."""
    state, effects = invited(commissioned())
    state, _ = after(state, Trained(answer(kinds(effects, Train)[0].job)))
    (name,) = state.outbox.items
    state, _ = after(state, heard("receipt", name, Receipt(accepted=False, reason="bad").to_bytes()))
    state, effects = invited(state, round_index=1)
    own = parted(wire.decode(kinds(effects, Train)[0].job)[0])["own"]
    state, _ = after(state, Trained(wire.encode(joined({"own": own, "update": {}}))))
    (name,) = state.outbox.items
    state, _ = after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))
    assert not state.training.is_counted and not state.outbox.items
