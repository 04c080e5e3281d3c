"""`cloud-aggregator status`: does the service work, how old is what is shown, the gateways, the training at hand."""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from pathlib import Path
from typing import Any

from fedgate.cloud_aggregator.alarms import register
from fedgate.cloud_aggregator.alarms.register import OF_OURS
from fedgate.cloud_aggregator.commands.store import open_store
from fedgate.cloud_aggregator.events import SaveTraining
from fedgate.cloud_aggregator.health import SILENT_S, Health, describe_health, find_gateway_state, is_silent
from fedgate.cloud_aggregator.names import list_first
from fedgate.cloud_aggregator.notifications.post_queue import label
from fedgate.cloud_aggregator.pki.quarantine import list_denied_names
from fedgate.cloud_aggregator.rounds.figures import list_figures
from fedgate.cloud_aggregator.rounds.set_back import describe_set_back
from fedgate.config.runtime import cli
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.models.time_units import NS

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3  # what monitoring plugins end with
WORDS = {OK: "OK", WARNING: "WARNING", CRITICAL: "CRITICAL", UNKNOWN: "UNKNOWN"}
TEXT = """Show whether the service works, since when, whether the broker is connected and how old the data is; then the
training at hand and the gateways.

A gateway is online, offline, revoked or unknown: while the service does not work or the broker is not connected nobody
knows how a gateway is. "seen" is when it last spoke itself; what a broker had kept of it does not count."""
EXAMPLES = f"""examples:
  cloud-aggregator status -c aggregator.toml
  cloud-aggregator status -c aggregator.toml --json
  cloud-aggregator status -c aggregator.toml --check
      one line for monitoring, and as exit code
      {OK} OK        it works, the broker is connected, every gateway that is not revoked is online
      {WARNING} WARNING   a gateway is offline, was enrolled and has never spoken, is denied at the broker until that is
                  restarted, or counts as online and has not spoken for {SILENT_S:g} s; the store is older than what
                  gateways have answered
      {CRITICAL} CRITICAL  the service does not run or hangs, or the broker is not connected
      {UNKNOWN} UNKNOWN   settings or store cannot be read
"""
COLUMNS = ("gateway", "state", "seen", "baseline", "model", "alarms")
WIDTH, NAME_WIDTH = 100, 34  # of a line; of a gateway's name in it
WIDE_COLUMNS = (
    *("gateway", "state", "seen", "baseline_windows", "baseline_needed", "can_train", "windows", "windows_lost"),
    *("dropped", "model_version", "settling", "alarms_active", "privacy_epsilon", "identity"),
    *("refusal", "training_remarks"),
)
DENIED = "denied at the broker until that is restarted"


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "show whether the service works, the gateways and the training at hand"
    command = commands.add("status", _run, text, description=TEXT, examples=EXAMPLES)
    command.add_argument("--wide", action="store_true", help="show all columns, however wide the table gets")
    command.add_argument("--check", action="store_true", help="one line and an exit code for monitoring: 0, 1, 2 or 3")


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.check:
        summary = summarise(arguments.config, time.time_ns())
        cli.show(arguments, summary, f"{_format(summary)}\n{show_gateways(summary['gateways'], arguments.wide)}")
        return OK
    try:
        summary = summarise(arguments.config, time.time_ns())
        code, reason = check_promises(summary)
    except (ValueError, OSError) as error:
        summary, code, reason = {}, UNKNOWN, " ".join(cli.describe(error).split())
    cli.show(arguments, {"code": code, "reason": reason, **summary}, f"{WORDS[code]} - {reason}")
    return code


def summarise(config: Path, now_ns: int) -> dict[str, Any]:
    """Return all that the command shows, for `config` at `now_ns`."""

    settings = load(config, AggregatorSettings)
    with open_store(settings.aggregator.store) as store:
        beats, rows, closed = store.read_rows("service"), store.read_rows("gateways"), store.read_rows("rounds", "id")
        training, alarms, released = (
            store.read_training(),
            store.read_alarms(),
            store.read_rows("models", "version", "released_ns"),
        )
        registry, held_ns = store.read_registry(), store.database.find_held_since_ns()
    found = describe_health(beats[0] if beats else None, held_ns, now_ns)
    is_site = settings.identity is not None
    unheard = registry.admitted - {row["gateway"] for row in rows} if is_site else frozenset()
    gateways = [_summarise_gateway(row, found, registry.barred if is_site else frozenset(), now_ns) for row in rows]
    gateways += [{"gateway": name, "state": "unknown", "is_silent": False} for name in sorted(unheard)]
    denied = list_denied_names(settings.identity, registry) if registry.list_outlived() else frozenset()
    for one in gateways:
        causes = sorted({known.alarm.cause for known in register.select_active(alarms.book, one["gateway"])})
        conflicts = [cause.removeprefix(OF_OURS) for cause in causes if cause.startswith(OF_OURS)]
        one |= {"identity": ", ".join(conflicts)}
        one |= {"is_heard": one["gateway"] not in unheard, "is_denied": one["gateway"] in denied}
        if one["is_denied"]:
            one |= {"state": "unknown", "is_silent": False, "identity": "denied"}
    place = _summarise_training(training, settings) if training else None
    answered = {one["gateway"]: one.get("answered", "") for one in gateways}
    fleet = alarms.fleet
    return {
        "service": _service(found, now_ns),
        "rounds_closed": closed[-1]["id"] if closed else 0,  # of which the newest are kept
        "model_version": max((row["version"] for row in released if row["released_ns"] is not None), default=0),
        "training": place,
        "gateways": gateways,
        "fleet": fleet.alarm.model_dump(mode="json") if fleet.alarm and fleet.active else None,
        "posts": {
            name: {"waiting": len(one.items), "dropped": one.dropped, "refused": one.refused}
            for name, one in alarms.queues.items()
        },
        "alarms_refused": alarms.refused,
        "store_is_older": describe_set_back(answered, place["run"], place["round_index"]) if place else "",
    }


def _service(found: Health, now_ns: int) -> dict[str, Any]:
    def age_s(t_ns: int | None) -> float | None:
        return None if t_ns is None else round(max(now_ns - t_ns, 0) / NS, 1)

    return {
        "state": found.work,
        "since": cli.format_time(found.began_ns),
        "last_sign": cli.format_time(found.beat_ns),
        "broker": "connected" if found.is_connected else "not connected",
        "broker_since": cli.format_time(found.link_ns),
        "data_as_of": cli.format_time(found.as_of_ns),
        "data_age_s": age_s(found.as_of_ns),
        "is_live": found.is_live,
    }


def _summarise_gateway(row: dict[str, Any], found: Health, barred: frozenset[str], now_ns: int) -> dict[str, Any]:
    shown = {**json.loads(row["status"]), "gateway": row["gateway"], "seen": cli.format_time(row["seen_ns"] or None)}
    shown["state"] = find_gateway_state(shown["state"], found, is_barred=row["gateway"] in barred)
    shown["unknown_since"] = cli.format_time(found.as_of_ns) if shown["state"] == "unknown" else ""
    shown["is_silent"] = is_silent(shown["state"], row["seen_ns"], found.link_ns, now_ns)
    return shown


def _summarise_training(stored: SaveTraining, settings: AggregatorSettings) -> dict[str, Any]:
    """Return where a stored training is, and the numbers of it."""
    meta = stored.meta
    return {name: meta[name] for name in ("run", "round_index", "phase")} | {
        "answers": len(meta["counted"]),
        "figures": list_figures(stored, settings),
    }


def check_promises(summary: dict[str, Any]) -> tuple[int, str]:
    """Return the exit code of `--check` and the reason."""
    service = summary["service"]
    if not service["is_live"]:
        return CRITICAL, _line(service)
    belong = [one for one in summary["gateways"] if one["state"] != "revoked"]
    offline = [one["gateway"] for one in belong if one["state"] == "offline"]
    silent = [one["gateway"] for one in belong if one["is_silent"]]
    denied = [one["gateway"] for one in belong if one["is_denied"]]
    unheard = [one["gateway"] for one in belong if not one["is_heard"] and not one["is_denied"]]
    found = {"offline": offline, "silent": silent, DENIED: denied, "enrolled and never heard": unheard}
    reasons = [f"{word}: {list_first(names)}" for word, names in found.items() if names]
    reasons += [summary["store_is_older"]] if summary["store_is_older"] else []
    counts = f"{len(belong) - len({*offline, *silent, *denied, *unheard})} of {len(belong)} gateways online"
    return (WARNING, "; ".join([counts, *reasons])) if reasons else (OK, f"{counts}; {_line(service)}")


def _line(service: dict[str, Any]) -> str:
    """Return one line on the service, the broker and the data."""
    if service["state"] == "never ran":
        return "service: has never run on this store"
    age = f"data: as of {service['data_as_of']}, {service['data_age_s']:.0f} s old"
    link = f"broker: {service['broker']} since {service['broker_since']}"
    works = {
        "running": f"service: runs since {service['since']}; {link}",
        "hangs": f"service: HANGS, its process is there and has done nothing since {service['last_sign']}",
        "stopped": f"service: DOES NOT RUN, last sign of it {service['last_sign']}",
    }
    return f"{works[service['state']]}; {age}"


def _format(summary: dict[str, Any]) -> str:
    lines = [_line(summary["service"])]
    lines.append(f"{summary['rounds_closed']} rounds closed, model version {summary['model_version']}")
    if summary["store_is_older"]:
        lines.append(f"WARNING: {summary['store_is_older']}")
    if denied := [one["gateway"] for one in summary["gateways"] if one["is_denied"]]:
        lines.append(f"WARNING: {DENIED}: {', '.join(denied)}")
    if training := summary["training"]:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in training["figures"].items())
        place = f"round {training['round_index']}, phase {training['phase']}, answers {training['answers']}"
        lines.append(f"training {training['run']}: {place}{'; ' if figures else ''}{figures}")
    if fleet := summary["fleet"]:
        lines.append(f"fleet alarm since {cli.format_time(fleet['onset_ns'])}: {fleet['text']}")
    for name, held in summary["posts"].items():
        if any(held.values()):
            given_up = f"{held['dropped']} were given up, {held['refused']} refused"
            lines.append(f"{label(name)}: {held['waiting']} changes wait, {given_up}")
    if summary["alarms_refused"]:
        lines.append(f"alarms: {summary['alarms_refused']} messages refused; the log says of whom and why")
    return "\n".join(lines)


def show_gateways(gateways: list[dict[str, Any]], is_wide: bool) -> str:
    """Return the table of gateways: all that is known of each, or what fits a line, and below it what needs somebody's
    attention.
    """
    if is_wide:
        return cli.format_rows(WIDE_COLUMNS, gateways)
    noted = [f"{one['gateway']}: {note}" for one in gateways if (note := _note(one))]
    lines = [textwrap.fill(line, WIDTH, subsequent_indent="    ") for line in noted]
    return "\n".join([cli.format_rows(COLUMNS, map(_select, gateways)), *lines])


def _select(one: dict[str, Any]) -> dict[str, Any]:
    """Return what the narrow table shows of a gateway."""
    name = one["gateway"]
    return {
        "gateway": name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 3]}...",
        "state": one["state"],
        "seen": one.get("seen"),
        "baseline": f"{one['baseline_windows']}/{one['baseline_needed']}" if "baseline_windows" in one else None,
        "model": one.get("model_version"),
        "alarms": one.get("alarms_active"),
    }


def _note(one: dict[str, Any]) -> str:
    dropped = sum(one.get("dropped", {}).values())
    notes = (one["identity"], one.get("refusal"), one.get("training_remarks"), dropped and f"{dropped} dropped")
    return "; ".join(note for note in notes if note)
