"""`cloud-aggregator samples`: raw samples around alarms, asked of their gateways and written into files."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgate.cloud_aggregator.commands.alarms.alarms import find_row, read_rows
from fedgate.cloud_aggregator.commands.store import open_stated, place_order
from fedgate.config.runtime import cli, files

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.storage.store import Store
    from fedgate.config.protocol.samples import Clip, ClipChannel

Row = dict[str, Any]
TEXT = """Fetch the raw samples around an alarm from its gateway and write them into a file. Without WHAT: list them.

By default no raw sample leaves a gateway. They come only where both sides allow it: [samples] fetch = true in the
settings of the aggregator, and the table [samples] in those of the gateway, which else refuses. They travel behind
everything else. An alarm is named as in 'cloud-aggregator alarms'; only an anomaly has samples."""
EXAMPLES = """examples:
  cloud-aggregator samples fetch gateway-7/anomaly -c aggregator.toml
  cloud-aggregator samples list -c aggregator.toml
      what was asked for, what is here, and why something is not
  cloud-aggregator samples export gateway-7/anomaly --output alarm.mseed -c aggregator.toml
      miniSEED 3, with unit, gain and bias in the extra header 'fedgate'; alarm.csv: a table with the time of each
      sample in UTC and the unit of each channel. The file is readable to you alone
"""
COLUMNS = ("gateway", "alarm", "state", "requested", "received", "size_bytes", "problem")
ANOMALY = "anomaly"  # the kind of alarms around which samples are kept
ASKED, REFUSED, HERE = "asked", "refused", "here"
OF_SOURCE = ("source", "channels", "samples", "rate_hz", "first", "last", "segments")


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "fetch the raw samples around alarms, and export them as miniSEED or CSV"
    parts = commands.add_group("samples", text, description=TEXT, examples=EXAMPLES, default_part="list")
    parts.add("list", _list, "list what was asked for, the newest last", description=TEXT)
    for name, act, does in (
        ("fetch", _fetch, "ask the gateway of an alarm for the samples around it"),
        ("show", _show, "show what the samples around an alarm are"),
        ("export", _export, "write the samples around an alarm into a file"),
    ):
        part = parts.add(name, act, does)
        part.add_argument("alarm", metavar="ALARM")
        if name == "export":
            part.add_argument("--output", type=Path, required=True, metavar="FILE", help="FILE.mseed or FILE.csv")
            part.add_argument("--source", metavar="NAME", help="of the gateway, where it has several")
            part.add_argument("--replace", action="store_true", help="overwrite a file that is there")


def _read_samples(store: Store) -> list[Row]:
    rows = store.read_rows("samples", "gateway", "alarm", "requested_ns", "received_ns", "problem", "size_bytes")
    return [
        row
        | {
            "state": ASKED if row["received_ns"] is None else HERE if row["size_bytes"] is not None else REFUSED,
            "requested": cli.format_time(row["requested_ns"]),
            "received": cli.format_time(row["received_ns"]),
        }
        for row in rows
    ]


def _list(arguments: argparse.Namespace) -> None:
    with open_stated(arguments) as store:
        rows = _read_samples(store)
    cli.show(arguments, rows, cli.format_rows(COLUMNS, rows))


def _find(store: Store, name: str) -> tuple[Row, Row | None]:
    """Return an alarm, and what was asked of its samples; raises `ValueError` where there is no such alarm."""
    alarm = find_row(read_rows(store, time.time_ns()), name)
    key = (alarm["gateway"], alarm["id"])
    return alarm, next((row for row in _read_samples(store) if (row["gateway"], row["alarm"]) == key), None)


def _fetch(arguments: argparse.Namespace) -> None:
    with open_stated(arguments) as store:
        alarm, row = _find(store, arguments.alarm)
    name = f"{alarm['gateway']}/{alarm['id']}"
    if alarm["kind"] != ANOMALY:
        raise ValueError(f"{name}: it is a sensor alarm; a gateway keeps the samples around anomalies alone")
    if row is not None and row["state"] == HERE:
        text = f"{name}: its samples are here already; 'cloud-aggregator samples export' writes them into a file"
        cli.show(arguments, {"order": None, "is_done": True, "text": text}, text)
        return
    answer = place_order(arguments, "samples", {"alarms": [name]})
    cli.show(arguments, answer._asdict(), answer.text)


def _read_clip(arguments: argparse.Namespace) -> tuple[Row, Clip]:
    """Return an alarm and the samples around it; raises `ValueError` where they are not here."""
    from fedgate.config.protocol.samples import decode_clip

    with open_stated(arguments) as store:
        alarm, row = _find(store, arguments.alarm)
        body = store.read_samples(alarm["gateway"], alarm["id"])
    name = f"{alarm['gateway']}/{alarm['id']}"
    if body is not None:
        return alarm, decode_clip(body, len(body))
    if row is None:
        raise ValueError(f"{name}: its samples are not here; 'cloud-aggregator samples fetch {name}' asks for them")
    if row["state"] == ASKED:
        raise ValueError(f"{name}: its samples were asked for at {row['requested']} and are not here yet")
    raise ValueError(f"{name}: its samples do not come: {row['problem']}")


def _show(arguments: argparse.Namespace) -> None:
    from fedgate.cloud_aggregator.samples.clip_files import format_time, join_pieces

    alarm, clip = _read_clip(arguments)
    sources = []
    for source, pieces in zip(clip.meta.sources, clip.pieces, strict=True):
        rates = sorted({piece.rate_hz for piece in pieces})
        sources.append(
            {
                "source": source.name,
                "channels": len(source.channels),
                "samples": sum(len(piece.values) for piece in pieces),
                "rate_hz": " ".join(f"{rate:g}" for rate in rates if rate) or "none",
                "first": format_time(pieces[0].t_ns) if pieces else None,
                "last": format_time(pieces[-1].end_ns) if pieces else None,
                "segments": len(join_pieces(pieces)),
            }
        )
    lines = [f"{alarm['gateway']}/{alarm['id']}, raised at {cli.format_time(clip.meta.t_ns)}"]
    lines += [f"cut: {clip.meta.cut}"] if clip.meta.cut else []
    lines.append(cli.format_rows(OF_SOURCE, sources))
    lines += [f"  {channel}" for channel in _describe_channels(clip)]
    cli.show(arguments, clip.meta.model_dump(mode="json") | {"found": sources}, "\n".join(lines))


def _describe_channels(clip: Clip) -> list[str]:
    return [_describe_channel(one) for source in clip.meta.sources for one in source.channels]


def _describe_channel(channel: ClipChannel) -> str:
    unit = f"in {channel.unit}" if channel.unit else "in no unit"
    if channel.is_in_unit:
        return f"{channel.name}: {unit}"
    return f"{channel.name}: as the sensor sent it; times {channel.gain:g} plus {channel.bias:g} it is {unit}"


def _export(arguments: argparse.Namespace) -> None:
    from fedgate.cloud_aggregator.samples.clip_files import find_source, write_csv, write_mseed

    writers = {".csv": write_csv, ".mseed": write_mseed}
    write = writers.get(arguments.output.suffix.lower())
    if write is None:
        raise ValueError(f"--output: {arguments.output} given; expected a name that ends in {' or '.join(writers)}")
    if arguments.output.exists() and not arguments.replace:
        raise ValueError(f"{arguments.output}: it is here already; give --replace to overwrite it, or name another")
    _, clip = _read_clip(arguments)
    source, pieces = find_source(clip, arguments.source)
    body = write(source, pieces)
    files.write(arguments.output, body, files.PRIVATE_MODE)
    count = sum(len(piece.values) for piece in pieces)
    facts = {"file": str(arguments.output), "source": source.name, "samples": count, "size_bytes": len(body)}
    shown = "; ".join(_describe_channels(clip))
    text = f"{arguments.output}: {count} samples of {len(source.channels)} channels of source {source.name}: {shown}"
    cli.show(arguments, facts | {"channels": [one.model_dump() for one in source.channels]}, text)
