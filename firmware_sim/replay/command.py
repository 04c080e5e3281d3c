"""`firmware-sim replay`: a sensor node that plays a recording to a gateway."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from fedgate.config.runtime import cli
from fedgate.config.settings.settings import Broker, GatewaySettings, load
from fedgate.firmware_sim.recordings import Recording, reading
from fedgate.firmware_sim.recordings.cutting import count_lost, cut_windows
from fedgate.firmware_sim.recordings.recording import shortened
from fedgate.models.time_units import NS

SITE = "bridge"
UNCHECKED = "stream, channels and lost windows are not checked: give --gateway-config instead of --gateway"


def add_arguments(replay: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    replay.description = "Be a sensor node: publish a recording to a gateway over MQTT, in fedgate's sample frames."
    who = replay.add_mutually_exclusive_group(required=True)
    who.add_argument("--gateway", help="id of the gateway that listens")
    text = "gateway.toml of the gateway that listens: id, site, and the broker of its sensors with certificate and user"
    who.add_argument("--gateway-config", type=Path, metavar="FILE", help=text)
    replay.add_argument("--site", help="its site, with --gateway (default: bridge)")
    replay.add_argument("--stream", default="deck", help="name of the gateway's source (default: deck)")
    replay.add_argument(
        "--broker", type=_address, metavar="HOST:PORT", help="with --gateway; no certificates (default: 127.0.0.1:1883)"
    )
    replay.add_argument("--speed", type=positive, default=1.0, help="times real time (default: 1)")
    replay.add_argument("--channels", metavar="NAME,NAME", help="which channels, in which order (default: all)")
    reading.add_part(replay)
    replay.add_argument("--frame", type=positive, metavar="S", help="seconds a frame (default: 1, or one sample)")
    replay.add_argument(
        "--t0", default="now", metavar="now|recorded|SECONDS", help="time of the recording's first sample"
    )
    replay.add_argument("-q", "--quiet", action="store_true", help="no progress")
    replay.add_argument("--json", action="store_true", help="print what was sent as JSON")
    reading.add_arguments(replay)
    replay.set_defaults(act=_replay)


def positive(text: str) -> float:
    """Return a number above 0; raises `argparse.ArgumentTypeError`."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def _address(text: str) -> Broker:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, got {text!r}")
    return Broker(host=host, port=int(port))


def _listener(arguments: argparse.Namespace, settings: GatewaySettings | None) -> tuple[Broker, str, str]:
    """Return whom to play to: the broker, the site and the gateway."""
    if settings is None:
        return arguments.broker or Broker(), arguments.site or SITE, arguments.gateway
    for name in ("broker", "site"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name}: {arguments.gateway_config} says it; leave it out, or give --gateway instead")
    broker = settings.sensors.broker or settings.broker
    user = broker.user or settings.gateway.id  # a node logs in as the gateway that it belongs to
    return broker.model_copy(update={"user": user}), settings.gateway.site, settings.gateway.id


def _lost(settings: GatewaySettings, file: Path, name: str, recording: Recording) -> int:
    """Return how many windows of a stream are lost where the recording has gaps; raises `ValueError` for a stream that
    the gateway does not have, and for a recording that cannot be its.
    """
    sources = [source for source in settings.source if source.kind == "frames"]
    source = next((source for source in sources if source.name == name), None)
    if source is None:
        there_are = ", ".join(source.name for source in sources) or "none"
        raise ValueError(
            f"--stream {name}: {file} has no [[source]] of kind 'frames' with this name, so the gateway would drop all;"
            f" expected one of: {there_are}"
        )
    roles, given = [channel.role for channel in source.channels], recording.channel_names
    if len(roles) != len(given):
        expected = f"{len(roles)} for source {name!r} of {file}: {', '.join(roles)}"
        raise ValueError(f"{len(given)} channels ({shortened(given)}); expected {expected}; choose with --channels")
    (stream,) = (stream for stream in settings.streams if stream.name == name)
    spec = settings.features.model_copy(update={"channels": stream.channels})
    return count_lost(spec, cut_windows(spec, [stream], recording))


def _replay(arguments: argparse.Namespace) -> None:
    from fedgate.firmware_sim.replay.node import replay

    file: Path | None = arguments.gateway_config
    settings = None if file is None else load(file, GatewaySettings)
    broker, site, gateway = _listener(arguments, settings)
    recording = reading.recording_of(arguments)
    if arguments.channels:
        recording = recording.select(arguments.channels.split(","))
    t0_ns, whole = _t0_ns(arguments.t0, recording), recording
    recording = reading.part_of(whole, arguments)
    first = whole.gaps.row_at(arguments.start, whole.rate_hz, len(whole.values))
    t0_ns += whole.gaps.stamp_ns(first, whole.rate_hz)
    lost = None if file is None or settings is None else _lost(settings, file, arguments.stream, recording)
    count = replay(
        recording,
        broker,
        site=site,
        gateway=gateway,
        stream=arguments.stream,
        speed=arguments.speed,
        frame_s=arguments.frame or max(1.0, 1.0 / recording.rate_hz),
        t0_ns=t0_ns,
        progress=not arguments.quiet,
    )
    names = list(recording.channel_names)
    facts = {"frames": count, "seconds": recording.length_s, "channels": names, "gaps": len(recording.gaps.rows)}
    text = f"{count} frames, {recording.length_s:.0f} s of {', '.join(names)}, all acknowledged"
    if arguments.json or not arguments.quiet:
        facts |= {"windows_lost_to_gaps": lost, "checked": file is not None}
        cli.show(arguments, facts, f"{text}\n{_gaps_in_words(recording, lost)}")


def _gaps_in_words(recording: Recording, lost: int | None) -> str:
    gaps = f"gaps in time: {len(recording.gaps.rows)}"
    return f"{gaps}; {UNCHECKED}" if lost is None else f"{gaps}; windows lost to gaps: {lost}"


def _t0_ns(text: str, recording: Recording) -> int:
    if text == "now":
        return time.time_ns()
    if text == "recorded":
        if recording.t0_ns is None:
            raise ValueError("--t0 recorded: the recording does not say when it began; use now or Unix seconds")
        return recording.t0_ns
    try:
        return round(float(text) * NS)
    except ValueError:
        raise ValueError(f"--t0 {text}: expected now, recorded or Unix seconds") from None
