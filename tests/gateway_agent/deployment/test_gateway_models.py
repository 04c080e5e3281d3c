"""A model's way into force: only what is signed, newer, fitting, loadable and right on this processor gets there.

Goal: whatever is wrong with a manifest or its model, the one in force stays, the reason stands in the status, and the
next good one is taken. The models are real ones, spoiled in one respect and signed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator.context import sign_message
from fedgate.cloud_aggregator.releases import deploy
from fedgate.cloud_aggregator.releases.deploy import make_model
from fedgate.cloud_aggregator.releases.releases import ModelRelease, fit_to_limits
from fedgate.config.identity import signing
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Manifest, name_audience
from fedgate.config.protocol.transfer import describe
from fedgate.gateway_agent.deployment.deployment import MODEL, MODELS
from fedgate.gateway_agent.events import Log, Save
from fedgate.gateway_agent.pipeline.pipeline import stack_rows
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import status
from fedgate.gateway_agent.training.training import own_in, save_own
from fedgate.models.arrays import FEATURES as X
from fedgate.models.detectors import DETECTORS
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.protocol.run import run
from fedgate.models.onnx_policy import OPSET_MAX, ModelRefusedError
from fedgate.models.time_units import NS
from tests.support.agents import LIMIT, TICK, after, changed, chunks, commissioned, heard, kinds, sent
from tests.support.graph_tricks import described
from tests.support.sites import FEATURES, KEY, SITE, T0_NS, WINDOWS, Shelf, agent, frame, gateway_settings, samples

Made = tuple[Manifest, bytes]
SPEC = FeatureSpec.model_validate(FEATURES)
COUNT = 3  # of features
FOR_ALL = name_audience(SITE, "all")
ALGORITHM = build("support-vector-election", COUNT, {})
LINEAR = {"weights": np.ones(COUNT), "intercept": np.array(0.5)}


def made_of(algorithm: Algorithm, version: int) -> Made:
    """Return what the aggregator makes of a training of one gateway, not yet signed."""
    rows = np.random.default_rng(0).normal(size=(40, COUNT))
    server = run(algorithm, {"a": {X: rows}}).server
    return make_model(
        algorithm,
        server,
        version=version,
        name="support-vector-election",
        run="run",
        features=SPEC,
        max_payload_bytes=LIMIT,
        gateways=1,
        created_ns=T0_NS,
    )


def released(version: int) -> Made:
    """Return a good model and its manifest."""
    manifest, body = made_of(ALGORITHM, version)
    return sign_message(manifest, KEY, FOR_ALL, T0_NS), body


def signed(manifest: Manifest, key: Ed25519PrivateKey = KEY, **change: Any) -> Manifest:
    changed = manifest.model_copy(update=change)
    return changed.model_copy(update={"signature": signing.sign(key, changed.signed_bytes())})


def of_linear(manifest: Manifest, personal: tuple[str, ...] = (), count: int = COUNT, **tensors: Any) -> Made:
    """Return a linear model with its golden pair at zero, where its score is its intercept."""
    params = {**LINEAR, "weights": np.ones(count), **tensors}
    body = DETECTORS["linear"].graph(params, personal)
    golden: dict[str, Any] = {
        "golden_x": ((0.0,) * COUNT,),
        "golden_score": (float(params["intercept"]),),
        "personal": personal,
    }
    return signed(manifest, model=describe(body, LIMIT), **golden), body


def test_the_aggregator_makes_no_model_that_every_gateway_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DETECTORS[ALGORITHM.detector]
    unfit = right._replace(graph=lambda params, personal: described(right.graph(params, personal)))
    monkeypatch.setattr(deploy, "DETECTORS", {ALGORITHM.detector: unfit})
    with pytest.raises(ModelRefusedError, match="it has field 10 of a graph of ONNX"):
        made_of(ALGORITHM, 1)


def offered(state: State, made: Made) -> tuple[State, list[Any]]:
    manifest, body = made
    return after(state, heard("manifest", "current", manifest.to_bytes(), "all"), *chunks(body), TICK)


def in_force(shelf: Shelf | None = None, **tables: Any) -> State:
    shelf = shelf or Shelf()
    state, effects = offered(commissioned(shelf, **tables), FIRST)
    shelf.commit(effects)
    assert state.deployment.manifest == FIRST[0] and state.monitor.pipeline.judge is not None
    return state


FIRST, SECOND = released(1), released(2)
GOOD, GOOD_BODY = SECOND
JUNK = b"this is no ONNX"
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
SPOILED: dict[str, tuple[Callable[[], Made], str]] = {
    "another key": (lambda: (signed(GOOD, STRANGER), GOOD_BODY), "its signature is not the release key's"),
    "no signature": (lambda: (GOOD.model_copy(update={"signature": ""}), GOOD_BODY), "its signature is not"),
    "signature is no base64": (lambda: (GOOD.model_copy(update={"signature": "é"}), GOOD_BODY), "its signature is not"),
    "changed after signing": (lambda: (GOOD.model_copy(update={"version": 9}), GOOD_BODY), "its signature is not"),
    "older": (lambda: of_linear(FIRST[0]), "model 1 is not newer than 1 in force"),
    "opset": (lambda: (signed(GOOD, opset=OPSET_MAX + 1), GOOD_BODY), "it needs opset 18, this agent runs up to 17"),
    "features": (
        lambda: (signed(GOOD, features=SPEC.model_copy(update={"hop_s": 0.5})), GOOD_BODY),
        "its features differ from the [features] of this gateway",
    ),
    "too large": (
        lambda: (signed(GOOD, model=GOOD.model.model_copy(update={"size_bytes": 2**40})), GOOD_BODY),
        f"it has {2**40} bytes, at most 16777216 are taken",
    ),
    "not ONNX": (lambda: (signed(GOOD, model=describe(JUNK, LIMIT)), JUNK), "it is no ONNX model"),
    "empty": (
        lambda: (signed(GOOD, model=describe(b"", LIMIT)), b""),
        "it is no ONNX model: a model without ir_version",
    ),
    "cut": (
        lambda: (signed(GOOD, model=describe(GOOD_BODY[:-9], LIMIT)), GOOD_BODY[:-9]),
        "it is no ONNX model: it ends in the middle",
    ),
    "golden pair": (
        lambda: (signed(GOOD, golden_score=tuple(score + 0.1 for score in GOOD.golden_score)), GOOD_BODY),
        "its golden scores differ by 0.1 on this processor",
    ),
    "golden rows": (lambda: (signed(GOOD, golden_x=((1.0,), (1.0, 2.0))), GOOD_BODY), "are not rows of 3 features"),
    "no golden rows": (lambda: (signed(GOOD, golden_x=(), golden_score=()), GOOD_BODY), "are not rows of 3 features"),
    "golden scores": (lambda: (signed(GOOD, golden_score=(1.0,)), GOOD_BODY), "it has 1 golden scores for 4 inputs"),
    "tensor the model lacks": (
        lambda: (signed(of_linear(GOOD)[0], personal=("center",)), of_linear(GOOD)[1]),
        "onnxruntime cannot run it",
    ),
    "other inputs": (lambda: of_linear(GOOD, count=COUNT + 1), "onnxruntime cannot run it"),
    "not finite": (
        lambda: of_linear(GOOD, ("center", "scale"), weights=np.full(COUNT, 3e38)),
        "it gives no finite score on this gateway's own baseline",
    ),
    "saturated": (lambda: of_linear(GOOD, weights=np.zeros(COUNT)), "the score is saturated"),
}


@pytest.mark.parametrize(("said", "stays"), [("round 0: training failed", True), ("model 1 waits", False)])
def test_a_model_in_force_takes_back_what_was_said_of_models_and_not_why_a_round_was_refused(
    said: str, stays: bool
) -> None:
    state, _ = offered(changed(in_force(), "context", refusal=said), signed_third())
    assert state.deployment.manifest is not None and state.deployment.manifest.version == 3
    assert status(state).refusal == (said if stays else "")


@pytest.mark.soak
@pytest.mark.parametrize("fault", SPOILED)
def test_a_bad_model_leaves_the_one_in_force_and_says_why(fault: str) -> None:
    make, words = SPOILED[fault]
    before = in_force()
    state, effects = offered(before, make())
    assert words in status(state).refusal
    assert (
        state.deployment.manifest == before.deployment.manifest
        and state.monitor.pipeline.judge is before.monitor.pipeline.judge
    )
    assert (
        {save.key for save in kinds(effects, Save)} <= {MODELS}
        and state.deployment.candidate is None
        and not state.downloads.bodies
    )
    assert set(state.deployment.models.trying) <= set(
        before.deployment.models.trying
    )  # what was refused in order did not end the agent
    state, effects = offered(changed(state, "context", refusal="something else"), make())
    assert words in status(state).refusal and not state.downloads.receiver.incoming and not sent(effects, "want")
    state, effects = offered(state, signed_third())
    assert state.deployment.manifest is not None and (
        state.deployment.manifest.version,
        status(state).refusal,
    ) == (
        3,
        "",
    )


def signed_third() -> Made:
    return signed(GOOD, version=3), GOOD_BODY


@pytest.mark.parametrize("payload", [b"{}", GOOD.to_bytes().replace(b'"version":2', b'"version":0'), b"\xff" * 9])
def test_what_is_no_manifest_is_dropped(payload: bytes) -> None:
    state, _ = after(in_force(), heard("manifest", "current", payload, "all"))
    assert state.messages_dropped == 1 and state.deployment.manifest == FIRST[0]


def test_the_model_in_force_announced_again_changes_nothing() -> None:
    state = in_force()
    assert offered(state, FIRST) == (
        replace(state, context=replace(state.context, uptime_ns=state.context.now_ns, clock="synchronised")),
        [],
    )


def test_a_model_that_comes_before_the_baseline_is_whole_waits_for_it() -> None:
    state, _ = offered(agent(gateway_settings(), Shelf()), FIRST)
    assert state.deployment.manifest is None and state.deployment.candidate is not None
    state, _ = after(state, heard("sample", "deck", frame(samples(1, WINDOWS))), *chunks(FIRST[1]), TICK)
    assert state.deployment.manifest == FIRST[0]


def test_a_newer_manifest_takes_the_place_of_one_whose_model_has_not_come() -> None:
    state, _ = after(commissioned(), heard("manifest", "current", FIRST[0].to_bytes(), "all"))
    other = of_linear(GOOD, ("center", "scale"))
    state, _ = offered(state, other)
    assert state.deployment.manifest == other[0] and not state.downloads.receiver.incoming
    assert offered(state, FIRST)[0].deployment.manifest == other[0]


def test_a_restart_brings_the_model_back_with_the_same_level_and_scores() -> None:
    shelf = Shelf()
    before = in_force(shelf).monitor.pipeline
    after_restart = agent(gateway_settings(), shelf).monitor.pipeline
    assert before.judge is not None and after_restart.judge is not None
    assert after_restart.judge.levels == before.judge.levels
    rows = stack_rows(before.baseline)
    np.testing.assert_array_equal(after_restart.judge.model(rows), before.judge.model(rows))


@pytest.mark.parametrize("fault", ["other bytes", "too large"])
def test_a_stored_model_is_examined_like_a_new_one(fault: str) -> None:
    shelf = Shelf()
    tables: dict[str, Any] = {}
    in_force(shelf)
    arrays, _ = wire.decode(shelf.blobs[MODEL])
    if fault == "other bytes":
        arrays["onnx"][-1] ^= 1
    else:
        tables = {"limits": {"max_model_bytes": 1_024}}
        assert len(FIRST[1]) > 1_024
    shelf.blobs[MODEL] = wire.encode(arrays)
    state = agent(gateway_settings(**tables), shelf)
    assert state.deployment.manifest is None and state.monitor.pipeline.judge is None
    assert status(state).refusal.startswith("stored model 1 refused: ")


def test_the_limits_of_a_message_may_change_between_release_and_restart() -> None:
    """How a body is cut stands in its manifest: the aggregator cuts and signs anew, and the digest stays."""
    manifest, body = FIRST
    limits = gateway_settings(limits={"max_payload_bytes": 2_048}).limits
    fitting = sign_message(fit_to_limits(ModelRelease(manifest, body), limits).manifest, KEY, FOR_ALL, T0_NS)
    assert fitting.model == describe(body, 2_048) and fitting.model != manifest.model
    state = in_force()
    state, effects = after(state, heard("manifest", "current", fitting.to_bytes(), "all"))
    assert not kinds(effects, Save) and state.deployment.candidate is None and status(state).refusal == ""
    state, _ = offered(commissioned(), (fitting, b""))
    assert state.deployment.candidate == fitting
    state, _ = offered(state, (manifest, body))  # cut in the old way, which is what was announced last
    assert state.deployment.manifest == manifest


def test_a_second_model_is_fetched_only_once_however_often_it_is_announced() -> None:
    state = in_force()
    for _ in range(5):
        state, effects = after(state, heard("manifest", "current", GOOD.to_bytes(), "all"))
        assert effects == [] and len(state.downloads.receiver.incoming) == 1
    wants = 0
    for at_s in range(1, 11):  # after 1 s, 2 more and 4 more, each a quarter longer at most
        state, effects = after(state, TICK, now_ns=T0_NS + at_s * NS)
        wants += sum("/want/" in getattr(effect, "topic", "") for effect in effects)
    assert wants == 3


def test_personal_tensors_belong_to_the_training_that_made_them_and_rest_with_the_model() -> None:
    """A gateway that learned weights of its own scores with them, also after a restart and while a new run begins."""
    made = of_linear(GOOD, ("center", "scale", "intercept"))
    shelf = Shelf()
    before = commissioned(shelf)
    learned = {**before.training.own, "intercept": np.array(7.0)}
    scores = {}
    for training in (GOOD.run, "another"):
        state, effects = offered(
            replace(before, training=replace(before.training, own=learned, answered=(training, 3))), made
        )
        assert state.monitor.pipeline.judge is not None and state.deployment.manifest == made[0]
        scores[training] = state.monitor.pipeline.judge.model(stack_rows(state.monitor.pipeline.baseline))
        level = next(effect.text for effect in effects if isinstance(effect, Log) and "in force" in effect.text)
        assert ("intercept as the model has them" in level) == (training == "another")
        shelf.commit(effects)
        shelf.blobs["own"] = save_own(replace(state.training, own={})).body  # whatever is learned later
        again = agent(gateway_settings(), shelf).monitor.pipeline.judge
        assert again is not None
        np.testing.assert_array_equal(again.model(stack_rows(state.monitor.pipeline.baseline)), scores[training])
    assert not np.allclose(scores[GOOD.run], scores["another"])
    assert own_in(replace(before.training, own=learned, answered=("another", 3)), "new").keys() == {"center", "scale"}
