"""A model's way into force: manifest -> signature -> body -> golden pair -> own baseline -> stored -> swapped.

Whatever fails on the way leaves the model in force untouched and says why, in the log and in the gateway's status.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from config import wire
from config.messages import Manifest
from config.settings import GatewaySettings
from config.survey import unpacked
from gateway_agent import fetching
from gateway_agent import memory as recall
from gateway_agent.events import Effect, Log
from gateway_agent.learning import refuse
from gateway_agent.pipeline import Judge, calibrated, judged_by, of_baseline, rows_of
from gateway_agent.scorer import ModelRefusedError, Scorer
from gateway_agent.state import State, own_in, owner, save_model, tell
from gateway_agent.watch import DAY_S, Watch, Watching, restored, spoken
from models.arrays import FEATURES, Array, Arrays, Floats, parted
from models.features import feature_names
from models.federated.algorithm import NORMALISATION, normalise
from models.profile import ProfileError
from models.sketch import SketchError, levels_of
from models.threshold import MINIMUM_SCORES, CalibrationError

OPSET_MAX = 17
UNFIT = (ModelRefusedError, CalibrationError, ProfileError, SketchError, wire.WireError)  # why a model is not taken
BORROWING_WINDOWS = 200  # or half of a short baseline: of its own, for its units, to use the level of the site
FAR_SPREADS = 100.0  # of the whole range that a feature took during commissioning
FAR_SHARE = 1e-3  # of its size, for a feature that hardly moved
GOLDEN_TOLERANCE = 1e-3  # of the score scale: float32 on another processor, far below any threshold's precision


def announced(state: State, manifest: Manifest) -> tuple[State, list[Effect]]:
    """Take in a manifest and fetch its model, if it may become the next one.

    One that was refused is refused again without another look: its model would be fetched for nothing each time.
    """
    known, reason = state.refused
    if known == _digest(manifest):
        return refuse(state, reason)
    current = state.manifest.version if state.manifest else 0
    if manifest.version <= current:
        same = state.manifest is not None and manifest.model.digest == state.manifest.model.digest
        return (state, []) if same else _refuse(state, manifest, f"is not newer than {current} in force")
    problem = mismatch(manifest, state.settings)
    if not state.verified(manifest.signed_bytes(), manifest.signature):
        problem = "its signature is not the release key's"
    if problem:
        return _refuse(state, manifest, f"refused: {problem}")
    return put_in_force(replace(state, candidate=manifest))


def _digest(manifest: Manifest) -> str:
    return fetching.digest_of(manifest.signed_bytes() + manifest.signature.encode())


def _refuse(state: State, manifest: Manifest, why: str) -> tuple[State, list[Effect]]:
    reason = f"model {manifest.version} {why}"
    return refuse(replace(state, refused=(_digest(manifest), reason)), reason)


def mismatch(manifest: Manifest, settings: GatewaySettings) -> str:
    """Return why a manifest is not for this gateway, or an empty string."""
    if manifest.opset > OPSET_MAX:
        return f"it needs opset {manifest.opset}, this agent runs up to {OPSET_MAX}"
    if manifest.features != settings.features:
        return "its features differ from the [features] of this gateway"
    if manifest.model.size_bytes > settings.limits.max_model_bytes:
        return f"it has {manifest.model.size_bytes} bytes, at most {settings.limits.max_model_bytes} are taken"
    return ""


def put_in_force(state: State) -> tuple[State, list[Effect]]:
    """Swap to the candidate where its body and the baseline are here; otherwise go on waiting."""
    manifest = state.candidate
    if manifest is None or not (state.pipeline.commissioned or _can_borrow(state, manifest)):
        return state, []
    body = state.bodies.get(manifest.model.digest)
    if body is None:
        return fetching.want(state, manifest.model)
    if not state.pipeline.commissioned:
        return _borrow(state, manifest, body)
    state = replace(state, candidate=None)
    personal = _personal(state, manifest)
    try:
        judge, watching = examined(state, manifest, body, personal)
    except UNFIT as error:
        return _refuse(state, manifest, f"refused: {error}")
    before = state.pipeline.judge
    if before is not None and before.watch.drift is not None:  # another model is no other baseline
        watching = watching._replace(drift=state.pipeline.watching.drift)
    state = replace(state, manifest=manifest, refusal="", pipeline=judged_by(state.pipeline, judge, watching))
    state, warned = _warned(state, judge)
    state, told = tell(state)
    levels = judge.levels
    how = "extrapolated from" if levels.extrapolated else "seen in"
    how = f"capped at [alarm] reach above what was {how}" if levels.capped else how
    level = (
        f"model {manifest.version} in force; alarms from {levels.raise_level:.3g}, {how} {levels.samples} calibration "
        f"windows with median {levels.median:.3g}"
    )
    neutral = sorted(set(manifest.personal) - personal.keys())
    if neutral:
        level += f"; {', '.join(neutral)} as the model has them, as this gateway took no part in learning its own"
    told_rules = [Log(*said) for said in spoken(judge.watch, watching)]
    return state, [save_model(manifest, body, personal), Log("info", level), *told_rules, *warned, *told]


def _can_borrow(state: State, manifest: Manifest) -> bool:
    """Tell whether a gateway without a baseline of its own can watch by what the others found: units of its own it
    has from its first windows, the level from the site.
    """
    is_new = state.manifest is None or state.manifest.version < manifest.version
    windows = max(min(BORROWING_WINDOWS, state.pipeline.baseline_needed // 2), MINIMUM_SCORES)
    is_lent = bool(manifest.site) and state.unlent != _digest(manifest)
    return is_new and is_lent and len(state.pipeline.baseline) >= windows


def _borrow(state: State, manifest: Manifest, body: bytes) -> tuple[State, list[Effect]]:
    """Put the candidate in force at the level of the site; it stays the candidate until the baseline is whole.

    It is not stored: after a restart it comes again, as long as the gateway still has nothing of its own. Where the
    site has no level to lend, the candidate waits for the baseline.
    """
    units, _ = normalise({}, {FEATURES: rows_of(state.pipeline.baseline)}, "own")
    try:
        scorer, _ = loaded(state, manifest, body, {name: units[name] for name in manifest.personal if name in units})
        counts = unpacked(manifest.site)["scores"]
        levels = levels_of(state.settings.alarm, counts, DAY_S / state.settings.features.hop_s)
    except ModelRefusedError as error:
        return _refuse(replace(state, candidate=None), manifest, f"refused: {error}")
    except (*UNFIT, LookupError) as error:
        state = replace(state, unlent=_digest(manifest))
        return refuse(state, f"model {manifest.version} waits for this gateway's own baseline: {error}")
    judge = Judge(scorer, Watch(levels, is_borrowed=True))
    state = replace(state, manifest=manifest, refusal="", pipeline=judged_by(state.pipeline, judge))
    state, told = tell(state)
    text = (
        f"model {manifest.version} in force; alarms from {levels.raise_level:.3g}, the level of the site in "
        f"{levels.samples} windows of {manifest.gateways} gateways, until this gateway's own baseline is whole; rules, "
        "context and drift wait for that"
    )
    return state, [Log("info", text), *told]


def _personal(state: State, manifest: Manifest) -> Arrays:
    return {name: array for name, array in own_in(state, manifest.run).items() if name in manifest.personal}


def examined(state: State, manifest: Manifest, body: bytes, personal: Arrays) -> tuple[Judge, Watching]:
    """Return the judge of a model that is as it should be, with levels from this gateway's own baseline, and what it
    remembers at first.

    Raises one of `UNFIT`.
    """
    scorer, shadow = loaded(state, manifest, body, personal)
    units = {name: state.own[name] for name in NORMALISATION}
    site = unpacked(manifest.site) if manifest.site else {}
    windows = state.settings.baseline.calibration_windows
    return calibrated(state.pipeline, scorer, shadow, windows, units, site)


def loaded(
    state: State, manifest: Manifest, body: bytes, personal: Arrays
) -> tuple[Scorer, tuple[Floats, NDArray[np.bool_]]]:
    """Return a model that loads and repeats its golden pair, and its scores of this gateway's own baseline with which
    of them can be trusted.

    Raises `ModelRefusedError`.
    """
    missing = [name for name in manifest.personal if name in NORMALISATION and name not in personal]
    if missing:
        raise ModelRefusedError(f"it needs {missing}, which this gateway has not learned")
    scorer = Scorer(body, personal)
    feature_count = len(feature_names(manifest.features))
    if not manifest.golden_x or {len(row) for row in manifest.golden_x} != {feature_count}:
        raise ModelRefusedError(f"its golden inputs are not rows of {feature_count} features")
    if len(manifest.golden_score) != len(manifest.golden_x):
        raise ModelRefusedError(
            f"it has {len(manifest.golden_score)} golden scores for {len(manifest.golden_x)} inputs"
        )
    golden_x = np.array(manifest.golden_x, dtype=np.float32)
    expected = np.array(manifest.golden_score)
    worst = float(np.abs(scorer.neutral(golden_x) - expected).max())
    if not worst <= GOLDEN_TOLERANCE * (1.0 + float(np.abs(expected).max())):
        raise ModelRefusedError(f"its golden scores differ by {worst:.3g} on this processor")
    shadow = of_baseline(state.pipeline, scorer)
    if not np.isfinite(shadow[0]).all():
        raise ModelRefusedError("it gives no finite score on this gateway's own baseline")
    return scorer, shadow


def _warned(state: State, judge: Judge) -> tuple[State, list[Effect]]:
    """Say, in the log and in the status, where the level lies beyond anything that the model can score.

    The model stays in force, as its scores still rank windows for those who look at them; but nobody should wait for
    an alarm that cannot come.
    """
    if judge.watch.rules is not None:  # of which any may raise it
        return state, []
    reached = float(np.nanmax(judge.model(_far_away(rows_of(state.pipeline.baseline)))))
    if reached >= judge.levels.raise_level:
        return state, []
    return refuse(
        state,
        f"no window can raise an alarm: this gateway's baseline asks for {judge.levels.raise_level:.3g} and the "
        f"strangest window scores {reached:.3g}; use a longer baseline, other features or another detector",
    )


def _far_away(rows: Array) -> Array:
    """Return windows (2 F, F) that no sound structure gives: each feature far up and far down, the others as usual."""
    usual, spread = np.median(rows, axis=0), FAR_SPREADS * (np.ptp(rows, axis=0) + np.abs(rows).max(axis=0) * FAR_SHARE)
    steps = np.diag(spread)
    return np.concatenate([usual + steps, usual - steps])


def reload(state: State, stored: bytes, remembered: bytes | None) -> tuple[State, list[Effect]]:
    """Put the stored model back in force after a restart, examined like a new one, with what it remembered.

    Its signature was checked before it was stored. Checking it again would leave a gateway without a model after an
    update that knows more of a manifest than the one that stored it.
    """
    arrays, meta = wire.decode(stored, size_max=len(stored))
    manifest, body = Manifest.from_bytes(arrays["manifest"].tobytes()), arrays["onnx"].tobytes()
    personal = parted(arrays).get("personal", {})
    if "personal" not in meta:  # 0.1.0 stored none, and had but centre and scale
        personal = _personal(state, manifest)
    problem = mismatch(manifest, state.settings)
    if problem or fetching.digest_of(body) != manifest.model.digest:
        return refuse(state, f"stored model {manifest.version} refused: {problem or 'its digest differs'}")
    try:
        judge, watching = examined(state, manifest, body, personal)
    except UNFIT as error:
        return refuse(state, f"stored model {manifest.version} refused: {error}")
    memory, watched = recall.from_bytes(remembered, owner(state, manifest)) if remembered else (recall.BLANK, "")
    watching = restored(watched) if watched else watching
    pipeline = replace(state.pipeline, judge=judge, memory=memory, watching=watching)
    return _warned(replace(state, manifest=manifest, pipeline=pipeline), judge)
