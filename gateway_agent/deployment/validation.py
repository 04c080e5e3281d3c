"""What a model must be before it judges: right in its bytes, on this processor and on this gateway's windows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Manifest
from fedgate.config.protocol.wire import unpack_survey
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.deployment.deployment import Bundle, Examination, Examine
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.gateway_agent.feature_row import Row
from fedgate.gateway_agent.pipeline.decision import DecisionState, ScoringModel
from fedgate.gateway_agent.pipeline.pipeline import (
    Pipeline,
    calibrate_model,
    count_gaps,
    is_alarming,
    judge_row,
    make_beside,
    stack_rows,
)
from fedgate.gateway_agent.pipeline.recurrence import score
from fedgate.models import onnx_policy
from fedgate.models.alarms.false_alarm_test import LEVEL, TOLERANCE, block_share, block_windows, is_broken
from fedgate.models.alarms.profile import ProfileError
from fedgate.models.alarms.site_thresholds import SketchError
from fedgate.models.alarms.threshold import CalibrationError, rate_of
from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.features.spec import feature_names
from fedgate.models.federated.protocol.algorithm import NORMALISATION
from fedgate.models.onnx_policy import OPSET_MAX, ModelRefusedError
from fedgate.models.time_units import DAY_S, NS

UNFIT = (ModelRefusedError, CalibrationError, ProfileError, SketchError, wire.WireError)  # why a model is not taken
FAR_SPREADS = 100.0  # of the whole range that a feature took during commissioning
FAR_SHARE = 1e-3  # of its size, for a feature that hardly moved
GOLDEN_TOLERANCE = 1e-3  # of the score scale: float32 on another processor, far below any threshold's precision
BUSY_SHARE_MAX = 0.5  # of the time from one window to the next that a model may take on one core
BLIND_MAX = 3  # windows without a finite score where the model before has one


class BrokenPromiseError(ModelRefusedError):
    """A model that alarms, on windows that the one in force is calm about, more often than this gateway promises."""


def mismatch(manifest: Manifest, settings: GatewaySettings) -> str:
    """Return why a manifest is not for this gateway, or an empty string."""
    if manifest.opset > OPSET_MAX:
        return f"it needs opset {manifest.opset}, this agent runs up to {OPSET_MAX}"
    if manifest.features != settings.features:
        return "its features differ from the [features] of this gateway"
    if manifest.model.size_bytes > settings.limits.max_model_bytes:
        return f"it has {manifest.model.size_bytes} bytes, at most {settings.limits.max_model_bytes} are taken"
    return ""


def examine_model(
    examine: Examine, context: Context, pipeline: Pipeline, bundle: Bundle, own: Arrays
) -> tuple[ScoringModel, DecisionState]:
    """Return the judge of a model that is as it should be, with levels from this gateway's own baseline, and what it
    remembers at first. `own` has the gateway's normalisation. Raises one of `UNFIT`.
    """
    scorer, shadow = load_model(examine, context, pipeline, bundle)
    units = {name: own[name] for name in NORMALISATION}
    site = unpack_survey(bundle.manifest.site) if bundle.manifest.site else {}
    windows = context.settings.baseline.calibration_windows
    return calibrate_model(pipeline, scorer, shadow, windows, units, site)


def load_model(
    examine: Examine, context: Context, pipeline: Pipeline, bundle: Bundle
) -> tuple[Scorer, tuple[Floats, NDArray[np.bool_]]]:
    """Return a model that loads, repeats its golden pair and is fast enough, and its scores of this gateway's own
    baseline with which of them can be trusted.

    It is tried in a process of its own first, see `model_trial`. Raises `ModelRefusedError`, and `UntriedError` where
    that is not possible now.
    """
    manifest, body, personal = bundle
    missing = [name for name in manifest.personal if name in NORMALISATION and name not in personal]
    if missing:
        raise ModelRefusedError(f"it needs {missing}, which this gateway has not learned")
    onnx_policy.check(body)
    golden_x = _stack_golden(manifest)
    rows, gaps = stack_rows(pipeline.baseline), count_gaps(pipeline)
    examine(Examination(body, personal, golden_x, rows, gaps, stack_rows(pipeline.recent or pipeline.baseline)))
    scorer = Scorer(body, personal)
    _check_golden(scorer, manifest, golden_x)
    began_ns = context.stopwatch()
    shadow = score(scorer, rows, gaps)
    window_s = (context.stopwatch() - began_ns) / NS / max(len(pipeline.baseline), 1)
    if window_s > BUSY_SHARE_MAX * context.settings.features.hop_s:
        raise ModelRefusedError(
            f"it takes {window_s:.3g} s a window on this processor, at most {BUSY_SHARE_MAX:.0%} of the "
            f"{context.settings.features.hop_s:g} s from one window to the next are allowed"
        )
    if not np.isfinite(shadow[0]).all():
        raise ModelRefusedError("it gives no finite score on this gateway's own baseline")
    return scorer, shadow


def _stack_golden(manifest: Manifest) -> Row:
    feature_count = len(feature_names(manifest.features))
    if not manifest.golden_x or {len(row) for row in manifest.golden_x} != {feature_count}:
        raise ModelRefusedError(f"its golden inputs are not rows of {feature_count} features")
    if len(manifest.golden_score) != len(manifest.golden_x):
        raise ModelRefusedError(
            f"it has {len(manifest.golden_score)} golden scores for {len(manifest.golden_x)} inputs"
        )
    return np.array(manifest.golden_x, dtype=np.float32)


def _check_golden(scorer: Scorer, manifest: Manifest, golden_x: Row) -> None:
    expected = np.array(manifest.golden_score)
    worst = float(np.abs(scorer.neutral(golden_x) - expected).max())
    if not worst <= GOLDEN_TOLERANCE * (1.0 + float(np.abs(expected).max())):
        raise ModelRefusedError(f"its golden scores differ by {worst:.3g} on this processor")


def block_promise(context: Context) -> tuple[int, float]:
    """Return how many windows make a block, and the share of blocks that a model may alarm on this gateway."""
    hop_s = context.settings.features.hop_s
    windows = block_windows(hop_s)
    return windows, block_share(rate_of(context.settings.alarm, DAY_S / hop_s), windows)


def run_in_shadow(context: Context, pipeline: Pipeline, judge: ScoringModel, watching: DecisionState) -> str:
    """Run a candidate over the recent windows beside the model in force; return what was found, for the log.

    Both see the same windows from a blank memory. Blocks in which the model in force alarms, or did in truth, say
    nothing: there may be damage, or its level may be out of date. Windows of the baseline say nothing either, as the
    levels were taken from them. Without a model in force there is nothing to compare with: any is better than none.

    Raises `BrokenPromiseError`, or `ModelRefusedError` where the candidate gives no finite scores.
    """
    present = pipeline.judge
    ends_ns = [seen.end_ns for seen in pipeline.baseline if seen.end_ns is not None]
    since_ns = max(ends_ns, default=0)
    recent = [seen for seen in pipeline.recent if seen.end_ns is not None and seen.end_ns > since_ns]
    windows, share = block_promise(context)
    if present is None or present.is_borrowed:
        return "no model in force to compare it with"
    new, old = make_beside(pipeline, judge, watching), make_beside(pipeline, present)
    blocks = alarmed = blind = 0
    for first in range(0, len(recent) - windows + 1, windows):
        is_alarmed = was_alarmed = False
        for seen in recent[first : first + windows]:
            new, judged = judge_row(new, seen)
            old, before = judge_row(old, seen)
            blind += judged.unscored is not None and before.unscored is None
            is_alarmed, was_alarmed = is_alarmed or is_alarming(new, judged), was_alarmed or is_alarming(old, before)
        if not was_alarmed:
            blocks, alarmed = blocks + 1, alarmed + is_alarmed
    if blind > BLIND_MAX:
        raise ModelRefusedError(f"it gives no finite score on {blind} recent windows that the model in force can score")
    if is_broken(alarmed, blocks, share):
        raise BrokenPromiseError(describe_broken_promise(context, alarmed, blocks))
    return f"{alarmed} of {blocks} recent blocks of {windows} windows alarmed that the model in force is calm about"


def describe_broken_promise(context: Context, alarmed: int, blocks: int) -> str:
    """Return how a model broke the promise of this gateway."""
    windows, share = block_promise(context)
    promised = context.settings.alarm.false_alarms_per_day
    return (
        f"it alarms in {alarmed} of {blocks} blocks of {windows} windows that the model before it is calm about; "
        f"{TOLERANCE:g} times the promised {promised:g} alarms a day would be in "
        f"{share:.1%} of them, and so many by chance in less than {LEVEL:.0%}"
    )


def describe_out_of_reach(pipeline: Pipeline, judge: ScoringModel) -> str:
    """Say where the level lies beyond anything that the model can score; an empty string where it does not.

    The model stays in force, as its scores still rank windows for those who look at them; but nobody should wait for
    an alarm that cannot come.
    """
    if judge.rules is not None:  # of which any may raise it
        return ""
    reached = float(np.nanmax(judge.model(_make_far_away(stack_rows(pipeline.baseline)))))
    if reached >= judge.levels.raise_level:
        return ""
    return (
        f"no window can raise an alarm: this gateway's baseline asks for {judge.levels.raise_level:.3g} and the "
        f"strangest window scores {reached:.3g}; use a longer baseline, other features or another detector"
    )


def _make_far_away(rows: Array) -> Array:
    """Return windows (2 F, F) that no sound structure gives: each feature far up and far down, the others as usual."""
    centre, floor = np.median(rows, axis=0), np.abs(rows).max(axis=0) * FAR_SHARE
    steps = np.diag(FAR_SPREADS * (np.ptp(rows, axis=0) + floor))
    return np.concatenate([centre + steps, centre - steps])
