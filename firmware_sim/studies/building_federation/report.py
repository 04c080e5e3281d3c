"""The report of the study of the costs of federation: losses by fleet and round, bytes to a loss, the paper's sum."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.building_federation.options import Method, Options, Paper
from fedgate.firmware_sim.studies.building_federation.pictures import draw
from fedgate.firmware_sim.studies.engine.markdown import deviation, spread, table
from fedgate.firmware_sim.studies.engine.pictures import beside
from fedgate.firmware_sim.studies.engine.study import Results
from fedgate.models.arrays import Floats
from fedgate.models.federated.wrappers.error_feedback import Compression

ROUNDS_SHOWN = (1, 2, 3, 5, 8, 12, 15, 20, 30)
MOST_INT8_BYTES, MOST_INT8_LOSS = 0.27, 0.005  # of float32's, and above float32's
MOST_RMSE = 1.05  # of the central network's
GIGA, MEGA = 1e9, 1e6


class Row(NamedTuple):
    """A way to travel over its seeds: losses after each round (seeds, rounds), the first of a baseline's its only one,
    and bytes.

    `up` and `down` are bytes of one gateway in one round, `once` what every sensor sends before the first round, `once`
    alone where nothing else travels.
    """

    name: str
    method: Method
    sensors: int
    losses: Floats
    up: float
    down: float
    once: float
    parameters: int
    epsilon: float

    @property
    def last(self) -> float:
        return float(self.losses[:, -1].mean())

    def rounds_to(self, loss: float) -> int | None:
        """Return after how many rounds the mean over seeds first was at or below a loss; None where it never was."""
        reached = np.flatnonzero(self.losses.mean(axis=0) <= loss)
        return int(reached[0]) + 1 if len(reached) else None

    def bytes_to(self, loss: float) -> float | None:
        """Return what the whole fleet sent and received until then."""
        rounds = self.rounds_to(loss)
        return None if rounds is None else self.total(rounds)

    def total(self, rounds: int) -> float:
        """Return what the whole fleet sends and receives in so many rounds."""
        return self.sensors * (self.once + rounds * (self.up + self.down))


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return the report in Markdown; the picture becomes `<prefix>-costs.png`."""
    fleets = [_row(options, results, options.plain, count) for count in options.counts]
    rows = [_row(options, results, name, each.sensors or options.sensors) for name, each in options.methods.items()]
    trivial = next((row.last for row in rows if row.method.model == "last value"), math.nan)
    path = beside(prefix, "costs")
    draw(fleets, [row for row in rows if not options.drawn or row.name in options.drawn], trivial, path)
    parts = [
        _introduction(options, results),
        f"![losses by round, and by what was sent]({path.name})",
        "## More sensors",
        _fleets(options, fleets, trivial),
        "## Ways to travel",
        _costs(options, rows, trivial),
        _targets(options, rows),
        *(f"**{row.name}**: {row.method.note}" for row in rows if row.method.note),
        "## The paper's sum",
        _paper(options.paper, rows),
    ]
    return "\n\n".join(part for part in parts if part)


def _row(options: Options, results: Results, name: str, sensors: int) -> Row:
    method = options.methods[name]
    each = [figures for cell, figures in results if (cell["method"], cell["sensors"]) == (name, sensors)]
    rounds = sorted(int(key.removeprefix("loss.")) for key in each[0] if key.startswith("loss."))
    losses = np.array([[one[f"loss.{index}"] for index in rounds] for one in each])

    def mean(key: str) -> float:
        return float(np.mean([one.get(key, 0.0) for one in each]))

    is_central = method.model == "central"
    return Row(
        name,
        method,
        round(mean("sensors")),
        losses,
        0.0 if is_central else mean("up"),
        0.0 if is_central else mean("down"),
        mean("raw_bytes") if is_central else 0.0,
        round(mean("parameters")),
        mean("epsilon"),
    )


def _introduction(options: Options, results: Results) -> str:
    rows = results[0][1]["rows"]
    return (
        "What it costs to let sensors of a building learn together, and what it is worth. A sensor is one channel of"
        " one room (`keti_rooms`: CO2, humidity, light, temperature; means of 5 minutes). A small network"
        f" (`recurrent-fedavg`, settings `{json.dumps(options.algorithm)}`) hears {options.heard} steps of it, the time"
        f" of day and the kind of sensor, and tells the value {5 * options.horizon} minutes after the last of them."
        f" The first {options.trains:.0%} of every recording train, what came later is told, of all sensors of the"
        " building alike, whoever trained. The loss is the mean square over all later windows in units of each"
        " sensor's own"
        " deviation. A fleet larger than the building has sensors is made of parts of their recordings in time, which"
        " are fewer rows each.\n\n"
        f"A sensor of the smallest fleet trains on {rows:.0f} windows. Losses are means over {options.seeds} draws of"
        " fleet and network, ± their deviation. Nothing was chosen by these figures. Bytes are those of encoded"
        " messages, without MQTT's own. What is sent centrally is every sample of the head of every sensor, 4 bytes"
        " each, once; the model must then come back, which is not counted. It is the same sum for any number of"
        f" rounds.\n\n{options.note}"
    ).strip()


def _fleets(options: Options, fleets: list[Row], trivial: float) -> str:
    shown = [index for index in ROUNDS_SHOWN if index <= options.rounds]
    head = ["sensors", *(f"after round {index}" for index in shown)]
    head += [f"rounds to {share:g} of the last value's loss" for share in options.reached]
    lines = []
    for row in fleets:
        losses = [spread(float(row.losses[:, at - 1].mean()), deviation(row.losses[:, at - 1])) for at in shown]
        needed = [row.rounds_to(share * trivial) for share in options.reached]
        lines.append([str(row.sensors), *losses, *("never" if each is None else str(each) for each in needed)])
    return table(head, lines) + f"\n\nThe last value heard, told again, has a loss of {trivial:.4f}."


def _costs(options: Options, rows: list[Row], trivial: float) -> str:
    plain = next(row for row in rows if row.name == options.plain)
    head = ["way", "sensors", "loss", "RMSE", "kB up", "kB down", "of plain up", "MB in all"]
    head += [f"MB to {share:g} of the last value's loss" for share in options.reached] + ["epsilon"]
    lines = []
    for row in rows:
        federated = row.method.model == "federated"
        needed = [row.bytes_to(share * trivial) for share in options.reached]
        lines.append(
            [
                row.name,
                str(row.sensors),
                f"{row.last:.4f}" + ("" if np.isnan(found := deviation(row.losses[:, -1])) else f" ± {found:.4f}"),
                f"{math.sqrt(row.last):.3f}",
                _in(row.up, 1e3),
                _in(row.down, 1e3),
                f"{row.up / plain.up:.3f}" if federated else "-",
                _in(row.total(row.losses.shape[1]), MEGA),
                *("never" if each is None else _in(each, MEGA) for each in needed),
                f"{row.epsilon:.3g}" if row.epsilon else "-",
            ]
        )
    return table(head, lines) + (
        "\n\nUp and down are of one gateway in one round; MB are of the whole fleet, both ways. Epsilon is that of one"
        " gateway after all rounds, at the delta of the settings."
    )


def _in(value: float, unit: float) -> str:
    return f"{value / unit:.3g}" if value else "-"


def _targets(options: Options, rows: list[Row]) -> str:
    plain, told = next(row for row in rows if row.name == options.plain), []
    for small in rows:
        wide = _as_float32(small, rows)
        if wide is not None:
            share, more = small.up / wide.up, small.last - wide.last
            kept = share <= MOST_INT8_BYTES and more <= MOST_INT8_LOSS
            told.append(
                f"Target, {small.name} takes at most {MOST_INT8_BYTES:.0%} of the bytes of {wide.name} at a loss at"
                f" most {MOST_INT8_LOSS:g} higher: {'reached' if kept else 'missed'}, {share:.1%} at {more:+.4f}, of"
                f" {small.parameters:,} parameters."
            )
    for central in (row for row in rows if row.method.model == "central"):
        ratio = math.sqrt(plain.last / central.last)
        told.append(
            f"Target, federated within 5 % of the RMSE of the same network trained centrally for as many passes:"
            f" {'reached' if ratio <= MOST_RMSE else 'missed'}, {ratio:.3f} of it."
        )
    for row in (row for row in rows if row.method.model in ("last value", "ridge")):
        how = "ahead of" if plain.last < row.last else "behind"
        told.append(f"{plain.name} is {how} {row.name}: {plain.last:.4f} and {row.last:.4f}.")
    return "\n".join(f"- {line}" for line in told)


def _as_float32(small: Row, rows: list[Row]) -> Row | None:
    """Return the row that an int8 row differs from in its compression alone."""
    settings = dict(small.method.settings)
    if settings.pop("compression", None) != {"number": "int8"}:
        return None
    alike = small.method.model_copy(update={"settings": settings, "note": ""})
    return next((row for row in rows if row.method.model_copy(update={"note": ""}) == alike), None)


def _paper(paper: Paper, rows: list[Row]) -> str:
    exchanges = paper.sensors * paper.rounds
    events = paper.events * paper.event_bytes
    lines = []
    for name, size in _ways(rows).items():
        up, down = exchanges * size * paper.parameters, exchanges * 4.0 * paper.parameters
        lines.append([name, f"{size:.3g}", _in(up, GIGA), _in(up + down, GIGA), f"{(up + down) / events:.3g}"])
    text = (
        f"The paper lets {paper.sensors} sensors train a network of {paper.parameters:,} parameters for {paper.rounds}"
        " rounds, to spare the network the raw events. In float32 that is"
        f" {4 * exchanges * paper.parameters / GIGA:.1f} GB up and as much down; {paper.events:,} events of"
        f" {paper.event_bytes} bytes are {events / GIGA:.1f} GB. With headers left out, and float32 on the way"
        " down, the ways above would take:\n\n"
    )
    saves = [line[0] for line in lines if float(line[-1]) < 1.0]
    verdict = (
        f"Less than the events takes: {', '.join(saves)}." if saves else "No way to travel takes less than the events."
    )
    return (
        text
        + table(["way", "bytes a parameter up", "GB up", "GB both ways", "times the events"], lines)
        + "\n\n"
        + verdict
    )


def _ways(rows: list[Row]) -> dict[str, float]:
    """Return the bytes that a parameter takes on its way up, of ways that do nothing but compress, or not even that."""
    found = {}
    for row in rows:
        compression = Compression.model_validate(row.method.settings.get("compression", {}))
        if row.method.model == "federated" and not row.method.sensors and set(row.method.settings) <= {"compression"}:
            bitmap = 0.125 if compression.share < 1.0 else 0.0
            found[row.name] = compression.share * np.dtype(compression.number).itemsize + bitmap
    return found
