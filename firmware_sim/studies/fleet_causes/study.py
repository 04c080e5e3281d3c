"""Which cause a fleet alarm names over simulated causes, by the rule in force and by the one before.

A cell is a cause and a seed: a site is drawn (`fleet_causes_data`), its gateways train the federated subspace, take
their levels, and watch. Scores, levels, alarms, what each gateway measures beside its anomaly and the fleet alarm are
those of the product. The limits of `fedgate.models.alarms.attribution` are chosen on the even seeds and reported on the
odd ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from fedgate.cloud_aggregator.alarms import fleet, register
from fedgate.config.protocol.messages import Alarm, Status
from fedgate.config.settings.notifications import FleetSpec
from fedgate.firmware_sim.studies.engine.markdown import table
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results, Study, StudyOptions
from fedgate.firmware_sim.studies.fleet_causes.data import CAUSES, HOP_S, LOAD, STEADY, SUPPLY, TEMPERATURE, Site, drawn
from fedgate.models.alarms.attribution import SHIPPED, Columns, Evidence, Limits, evidence_of
from fedgate.models.alarms.threshold import AlarmSpec, AlarmState, Transition, calibrate, update
from fedgate.models.arrays import FEATURES, Floats, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run
from fedgate.models.time_units import NS

T0_NS = 1_800_000_000 * NS
LABELS = ("undetermined", "weather", "power", "no alarm")
COLUMNS = Columns(weather=(TEMPERATURE, LOAD), power=(SUPPLY,))
BEFORE = "before"
SPEC = FleetSpec()
WATCHING = Status(state="online", boot_id="one", model_version=1)


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param seeds: draws of each cause; the even ones choose, the odd ones are reported.
    :param left_over: limits that may be chosen, and ...
    :param beside: ... see `fedgate.models.alarms.attribution`.
    :param alarm: the table [alarm] of all gateways.
    :param note: what else a reader must know.
    """

    seeds: int = Field(ge=2)
    left_over: list[float]
    beside: list[float]
    alarm: dict[str, float]
    note: str = ""


class Raised(NamedTuple):
    """An anomaly that a gateway raises or clears: its windows since the onset, and whether they began with a boot."""

    transition: Transition
    rows: Floats
    is_from_boot: bool


def cells(options: Options) -> list[Cell]:
    """Return every cause with every seed."""
    return [{"cause": cause, "seed": seed} for cause in CAUSES for seed in range(options.seeds)]


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return which of `LABELS` is named by every pair of limits, and by the rule before 0.6."""
    del data
    seed = int(cell["seed"])
    site = drawn(CAUSES[cell["cause"]], generator(options.seed, seed, f"fleet-causes/{cell['cause']}"))
    raised = _raised(options, site, seed)
    group = _group_of(site, raised)
    if not group:
        pairs = product(options.left_over, options.beside)
        return dict.fromkeys([*(_name(*pair) for pair in pairs), BEFORE], float(LABELS.index("no alarm")))
    found = {BEFORE: _named_before(site, group, raised)}
    for left_over, beside in product(options.left_over, options.beside):
        found[_name(left_over, beside)] = _named(site, group, Limits(left_over, beside))
    return {name: float(LABELS.index(label)) for name, label in found.items()}


def _name(left_over: float, beside: float) -> str:
    return f"{left_over:g}|{beside:g}"


def _raised(options: Options, site: Site, seed: int) -> list[list[Raised]]:
    """Return the anomalies of each gateway, in time."""
    spec = AlarmSpec.model_validate(options.alarm)
    data = {f"g{number}": {FEATURES: rows} for number, rows in enumerate(site.baseline)}
    algorithm = build("federated-subspace", site.baseline[0].shape[1], {})
    outcome = run(algorithm, data, seed=seed)
    detector, found = DETECTORS[algorithm.detector], []
    for number, (baseline, watched) in enumerate(zip(site.baseline, site.watched, strict=True)):
        model = {**outcome.server.global_state, **outcome.local_states[f"g{number}"]}
        levels = calibrate(spec, detector.score(model, baseline[-len(baseline) // 3 :]), 86_400.0 / HOP_S)
        state, raised = AlarmState(), []
        for index, score in enumerate(detector.score(model, watched).tolist()):
            if site.cut is not None and site.cut[0] <= index < site.cut[1]:
                state = AlarmState(active=state.active, onset_ns=state.onset_ns, peak=state.peak)
                continue
            state, change = update(levels, spec, state, _time(index), score)
            if change is not None and change.kind == "raised":
                first = round((change.onset_ns - T0_NS) / (HOP_S * NS))
                is_from_boot = site.cut is not None and first == site.cut[1]
                raised.append(Raised(change, watched[first : index + 1], is_from_boot=is_from_boot))
            elif change is not None:
                raised.append(Raised(change, watched[:0], is_from_boot=False))
        found.append(raised)
    return found


def _time(index: int) -> int:
    return T0_NS + round(index * HOP_S) * NS


def _group_of(site: Site, raised: list[list[Raised]]) -> dict[str, Raised]:
    """Return the gateways of the first fleet alarm that is raised since the cause began, none where none is."""
    changes = [(one.transition.t_ns, number, one) for number, many in enumerate(raised) for one in many]
    changes.sort(key=lambda change: change[:2])
    alarms: register.Register = {}
    known: dict[str, Raised] = {}
    gateways, state = {f"g{number}": WATCHING for number in range(len(raised))}, fleet.Fleet()
    for t_ns, number, one in changes:
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


def _named(site: Site, group: Mapping[str, Raised], limits: Limits) -> str:
    """Return the cause of a fleet alarm of these gateways, each with what it has measured beside its anomaly."""
    found = {}
    for gateway, one in group.items():
        baseline = site.baseline[int(gateway[1:])]
        measured = evidence_of(COLUMNS, baseline, one.rows, is_from_boot=one.is_from_boot, limits=limits)
        alarm = _alarm(gateway, one, *measured)
        found[gateway] = register.AlarmRecord(alarm, alarm.onset_ns, is_raised=True, is_cleared=False)
    return fleet.cause_of(found)


def _named_before(site: Site, group: Mapping[str, Raised], raised: list[list[Raised]]) -> str:
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


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the options that a cell depends on."""
    del cell
    return {name: getattr(options, name) for name in ("seed", "left_over", "beside", "alarm")}


Counts = dict[str, Counter[str]]  # cause -> how often which label


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return what was chosen, and on the other half of the seeds which cause is named how often."""
    del prefix
    choosing, reported = ([one for one in results if one[0]["seed"] % 2 == half] for half in (0, 1))
    pairs = [_name(*pair) for pair in product(options.left_over, options.beside)]
    shares = {name: _shares(_counts(choosing, name)) for name in pairs}
    # Of those that mislabel least the one that names most; of equals the strictest, which comes first.
    chosen = min(pairs, key=lambda name: (shares[name].wrong, -min(shares[name].weather, shares[name].power)))
    in_force = _name(SHIPPED.left_over, SHIPPED.beside)
    now, before = _counts(reported, in_force), _counts(reported, BEFORE)
    rows = [[f"{name} ({CAUSES[name].truth})", *(str(now[name][label]) for label in LABELS)] for name in CAUSES]
    earlier = [[name, *(str(before[name][label]) for label in LABELS)] for name in CAUSES]
    grid = [
        [f"{left:g}", *(_cell(shares[_name(left, beside)]) for beside in options.beside)] for left in options.left_over
    ]
    parts = [
        _introduction(options),
        f"## Named on the other half\n\n{_summary(now)}\n\n{table(['cause (truth)', *LABELS], rows)}",
        f"## The rule before\n\n{_summary(before)}\n\n{table(['cause', *LABELS], earlier)}",
        "## The choice\n\nOn the half that chooses: changes of the structure that got a name / share of weather /"
        f" share of power that did; chosen is {chosen}, in force is {in_force} (left over | beside).\n\n"
        + table(["left over", *(f"beside {beside:g}" for beside in options.beside)], grid),
        *[options.note.strip()] * bool(options.note),
    ]
    return "\n\n".join(parts)


def _introduction(options: Options) -> str:
    return (
        f"{len(CAUSES)} causes, {options.seeds} draws of each, half to choose two limits and half to report. A site has"
        " 3 to 8 gateways and a baseline of 3 to 7 days with a window every five minutes; each gateway measures six"
        " features of the structure, temperature, load and the supply of its sensors, with other slopes, bends and"
        " noise (`firmware_sim/studies/fleet_causes/data.py`). A front, a gust or a dip adds 0.5 to 1.25 ranges of the"
        " baseline. Scores are those of the federated subspace, alarms and the fleet alarm those of the"
        " product. A cause of *structure* must stay undetermined, whatever else happens. Where no fleet alarm was"
        " raised nothing is named, and such draws count in no share. Neither do the dips of a steady supply: it moves"
        f" by {STEADY:g} deviations of its reach in the baseline, which teaches nobody what a dip does. They are shown."
    )


class Shares(NamedTuple):
    """Of draws with a fleet alarm: changes of the structure that got a name, and named weather and power."""

    wrong: int
    changes: int
    weather: float
    power: float
    confused: int  # weather called power, or power weather
    undetermined: float  # of all


def _counts(results: Results, name: str) -> Counts:
    found: Counts = {cause: Counter() for cause in CAUSES}
    for cell, figures in results:
        found[cell["cause"]][LABELS[int(figures[name])]] += 1
    return found


def _shares(counts: Counts) -> Shares:
    of = {truth: Counter[str]() for truth in ("weather", "power", "structure")}
    for name, cause in CAUSES.items():
        if cause.is_steady and cause.truth == "power":
            continue  # shown, and nobody could name it
        of[cause.truth].update({label: count for label, count in counts[name].items() if label != LABELS[-1]})
    all_of_them = sum(of.values(), Counter())
    return Shares(
        wrong=of["structure"]["weather"] + of["structure"]["power"],
        changes=of["structure"].total(),
        weather=of["weather"]["weather"] / max(of["weather"].total(), 1),
        power=of["power"]["power"] / max(of["power"].total(), 1),
        confused=of["weather"]["power"] + of["power"]["weather"],
        undetermined=all_of_them["undetermined"] / max(all_of_them.total(), 1),
    )


def _cell(shares: Shares) -> str:
    return f"{shares.wrong} / {shares.weather:.0%} / {shares.power:.0%}"


def _summary(counts: Counts) -> str:
    found = _shares(counts)
    return (
        f"Named: {found.weather:.0%} of weather and load, {found.power:.0%} of power; {found.confused} taken for the"
        f" other. Changes of the structure called weather or power: {found.wrong} of {found.changes}. Undetermined:"
        f" {found.undetermined:.0%} of all."
    )


STUDY = Study(Options, cells, measure, report, identity)
