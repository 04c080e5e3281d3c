"""Which cause a fleet alarm names over simulated causes, by the rule in force and by the one before.

A site is drawn, its gateways train the federated subspace, take their levels, and watch. Scores, levels, alarms, what
each gateway measures beside its anomaly and the fleet alarm are those of the product. Half of the draws choose the
limits of `fedgate.models.alarms.attribution`, the other half is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from fedgate.cloud_aggregator.alarms import fleet, register
from fedgate.config.protocol.messages import Alarm, Status
from fedgate.config.settings import settings
from fedgate.config.settings.notifications import FleetSpec
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.studies.datasets.fleet_causes import (
    CAUSES,
    DAY,
    HOP_S,
    LOAD,
    SUPPLY,
    TEMPERATURE,
    Cause,
    Site,
    draw_site,
)
from fedgate.models.alarms.attribution import SHIPPED, Columns, Evidence, Limits, evidence_of
from fedgate.models.alarms.threshold import AlarmSpec, AlarmState, Levels, Transition, calibrate, update
from fedgate.models.arrays import FEATURES, Floats, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run
from fedgate.models.time_units import NS

T0_NS = 1_800_000_000 * NS
SILENT = "no alarm"
LABELS = ("undetermined", "weather", "power", SILENT)
COLUMNS = Columns(weather=(TEMPERATURE, LOAD), power=(SUPPLY,))
SPEC = FleetSpec()
WATCHING = Status(state="online", boot_id="one", model_version=1)


class Case(settings.Table):
    """What is measured.

    :param cause: one of `CAUSES`.
    :param half: of the draws; one chooses limits, the other is reported.
    :param left_over, beside: limits that may be chosen; see `fedgate.models.alarms.attribution`.
    :param alarm: the table [alarm] of all gateways.
    """

    cause: str
    half: Literal["chooses", "reports"]
    draw: int
    left_over: list[float]
    beside: list[float]
    alarm: AlarmSpec
    seed: int = 0


class Raised(NamedTuple):
    """An anomaly that a gateway raises or clears: its windows since the onset, and whether they began with a boot."""

    transition: Transition
    rows: Floats
    is_from_boot: bool


def measure(case: Case, data: Path) -> Figures:
    """Return for the half that chooses whether each pair of limits names the cause: `<truth>|<left over>|<beside>`.

    For the half that is reported, by rule, which label is given: `<rule>|<truth>|<label>`. Of draws with an alarm also
    whether the cause is `named`, which of a change of the structure is wrong, taken for the `other` or left
    `undetermined`; but not of a supply that hardly moved in the baseline, which teaches nobody what its dip does.
    """
    del data
    cause, draw = CAUSES[case.cause], 2 * case.draw + (case.half == "reports")
    site = draw_site(cause, generator(case.seed, draw, f"fleet-causes/{case.cause}"))
    raised = _watch(case.alarm, site, draw)
    group = _find_group(site, raised)
    is_judged = bool(group) and not (cause.is_steady and cause.truth == "power")
    if case.half == "chooses":
        limits = [Limits(*pair) for pair in product(case.left_over, case.beside)] if is_judged else []
        labels = {f"{each.left_over:g}|{each.beside:g}": _name(site, group, each) for each in limits}
        return {f"{cause.truth}|{pair}": _is_named(cause, label) for pair, label in labels.items()}
    found = {"in force": SILENT, "before": SILENT}
    if group:
        found = {"in force": _name(site, group, SHIPPED), "before": _name_as_before(site, group, raised)}
    figures = {f"{rule}|{cause.truth}|{one}": float(one == label) for rule, label in found.items() for one in LABELS}
    return figures | (_judge(cause, found) if is_judged else {})


def _is_named(cause: Cause, label: str) -> float:
    return float(label == cause.truth or (cause.truth == "structure" and label != LABELS[0]))


def _judge(cause: Cause, found: Mapping[str, str]) -> Figures:
    figures = Figures()
    for rule, label in found.items():
        figures |= {f"named.{rule}.{cause.truth}": _is_named(cause, label), f"alarms.{rule}.{cause.truth}": 1.0}
        figures[f"other.{rule}"] = float(cause.truth != "structure" and label not in (LABELS[0], cause.truth))
        figures[f"undetermined.{rule}"] = float(label == LABELS[0])
    return figures


def _watch(spec: AlarmSpec, site: Site, seed: int) -> list[list[Raised]]:
    """Return the anomalies of each gateway, in time."""
    data = {f"g{number}": {FEATURES: rows} for number, rows in enumerate(site.baseline)}
    algorithm = build("federated-subspace", site.baseline[0].shape[1], {})
    outcome = run(algorithm, data, seed=seed)
    score, raised = DETECTORS[algorithm.detector].score, []
    for number, (baseline, watched) in enumerate(zip(site.baseline, site.watched, strict=True)):
        model = {**outcome.server.global_state, **outcome.local_states[f"g{number}"]}
        levels = calibrate(spec, score(model, baseline[-len(baseline) // 3 :]), DAY)
        raised.append(list(_raise(spec, levels, site.cut, watched, score(model, watched))))
    return raised


def _raise(
    spec: AlarmSpec, levels: Levels, cut: tuple[int, int] | None, watched: Floats, scores: Floats
) -> Iterator[Raised]:
    state = AlarmState()
    for index, score in enumerate(scores.tolist()):
        if cut is not None and cut[0] <= index < cut[1]:
            state = AlarmState(active=state.active, onset_ns=state.onset_ns, peak=state.peak)
            continue
        state, change = update(levels, spec, state, _time(index), score)
        if change is not None:
            first = round((change.onset_ns - T0_NS) / (HOP_S * NS)) if change.kind == "raised" else index + 1
            yield Raised(change, watched[first : index + 1], is_from_boot=cut is not None and first == cut[1])


def _time(index: int) -> int:
    return T0_NS + round(index * HOP_S) * NS


def _find_group(site: Site, raised: list[list[Raised]]) -> dict[str, Raised]:
    """Return the gateways of the first fleet alarm that is raised since the cause began, none where none is."""
    changes = [(one.transition.t_ns, number, one) for number, many in enumerate(raised) for one in many]
    alarms: register.Register = {}
    known: dict[str, Raised] = {}
    gateways, state = {f"g{number}": WATCHING for number in range(len(raised))}, fleet.Fleet()
    for t_ns, number, one in sorted(changes, key=lambda change: change[:2]):
        alarm = _alarm(f"g{number}", one)
        known.setdefault(alarm.id, one)
        alarms, _, _ = register.take(alarms, f"g{number}", alarm, t_ns)
        was_active, state = state.active, fleet.judge(SPEC, state, gateways, alarms, t_ns, t_ns)
        if state.active and not was_active and t_ns >= _time(site.begin):
            group = fleet.find_largest_group(alarms, round(SPEC.window_s * NS))
            late = [held for held in group.values() if held.onset_ns >= _time(site.begin)]
            is_of_it = 2 * len(late) > len(group)  # not of the front in which the structure changed afterwards
            return {gateway: known[held.alarm.id] for gateway, held in group.items()} if is_of_it else {}
    return {}


def _alarm(gateway: str, one: Raised, weather: Evidence = "", power: Evidence = "") -> Alarm:
    change = one.transition
    return Alarm(
        id=f"{gateway}.{change.onset_ns}",
        cause="anomaly",
        kind="anomaly",
        state=change.kind,
        severity="warning",
        text="",
        onset_ns=change.onset_ns,
        t_ns=change.t_ns,
        clock="synchronised",
        weather=weather,
        power=power,
    )


def _name(site: Site, group: Mapping[str, Raised], limits: Limits) -> str:
    """Return the cause of a fleet alarm of these gateways, each with what it has measured beside its anomaly."""
    found = {}
    for gateway, one in group.items():
        baseline = site.baseline[int(gateway[1:])]
        measured = evidence_of(COLUMNS, baseline, one.rows, is_from_boot=one.is_from_boot, limits=limits)
        alarm = _alarm(gateway, one, *measured)
        found[gateway] = register.AlarmRecord(alarm, alarm.onset_ns, is_raised=True, is_cleared=False)
    return fleet.cause_of(found)


def _name_as_before(site: Site, group: Mapping[str, Raised], raised: list[list[Raised]]) -> str:
    """Return what the rule of 0.5 ends up with, which looked at when only: an outage within a quarter of an hour is the
    power, also one of the network and one that comes later, and what reaches everybody is weather or load.
    """
    onsets = [one.transition.onset_ns for one in group.values()]
    outages = [_time(index) for outage in (site.cut, site.offline) if outage is not None for index in outage]
    span_ns = round(SPEC.window_s * NS)
    if any(min(onsets) - span_ns <= at_ns <= max(onsets) + span_ns for at_ns in outages):
        return "power"
    joined = [any(abs(one.transition.onset_ns - min(onsets)) <= span_ns for one in many) for many in raised]
    return "weather" if all(joined) else "undetermined"
