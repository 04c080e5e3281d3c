"""`cloud-aggregator doctor`: what works at the aggregator, what does not, and what to do."""

from __future__ import annotations

import argparse
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from fedgate.config.doctor import report
from fedgate.config.doctor.imports import imports
from fedgate.config.doctor.report import Finding, failure, guarded, ok, one_line, warning
from fedgate.config.runtime import cli

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.storage.store import BackupNote
    from fedgate.config.settings.database import DatabaseUrl
    from fedgate.config.settings.identity import Identity
    from fedgate.config.settings.notifications import Webhook
    from fedgate.config.settings.settings import AggregatorSettings

NAME = "cloud-aggregator"
LIBRARIES = ("numpy", "pydantic", "cryptography", "scipy", "sklearn", "onnx", "sqlalchemy", "starlette", "uvicorn")
MODELS_KEPT = 50  # for which there should be room
REACH_S = 3.0
DAY_NS = 86_400 * 1_000_000_000
BACKUP_DAYS = 8  # one a week that is a day late
LEFT_S = 12.0  # for what comes after the libraries
MEMORY = Path("/proc/meminfo")
MIB = 1024 * 1024
BROKER_FILE = "mosquitto.conf"  # where 'cloud-aggregator init' put it


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    report.command(commands, NAME, examine)


def examine(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Yield what is found; ends early where nothing further can be looked at."""
    from fedgate.config.settings.settings import AggregatorSettings, SettingsError, load

    try:
        settings = load(arguments.config, AggregatorSettings)
    except SettingsError as error:
        yield from report.lines("settings", error, "correct it there; cloud-aggregator check looks at the file alone")
        return
    yield ok("settings", f"{settings.algorithm.name} for site {settings.aggregator.site}")
    until_s, works = time.monotonic() + report.WITHIN_S, True
    for finding in imports(LIBRARIES, {}, until_s - LEFT_S):
        works &= finding.level != "failure"
        yield finding
    yield from _machine(arguments.config, settings)
    if works:
        yield from _training(settings)
        yield from _store(settings.aggregator.store)
    if settings.webhook is not None:
        yield from _webhook(settings.webhook)
    yield from _broker(settings, until_s)
    yield from broker_file(arguments.config.parent / BROKER_FILE, settings.limits.max_payload_bytes)


def _machine(file: Path, settings: AggregatorSettings) -> Iterator[Finding]:
    from fedgate.cloud_aggregator.pki import site_keys
    from fedgate.config.doctor import host
    from fedgate.config.identity import signing

    store, broker = settings.aggregator.store, settings.broker
    held_file = store if isinstance(store, Path) else None  # else its disk is the server's
    yield from host.clock_here([one for one in (file, held_file, Path(report.__file__)) if one is not None])
    if held_file is not None:
        yield from host.disk(held_file, MODELS_KEPT * settings.limits.max_model_bytes)
        if held_file.parent.is_dir():
            yield from host.wear(host.mount_of(held_file.parent.resolve()).device)
    release_key = settings.aggregator.release_key
    authority = None if settings.identity is None else file.parent / settings.identity.folder / "ca.key"
    posting = None if settings.webhook is None else settings.webhook.secret_file
    held = (release_key, broker.key_file, broker.password_file, authority, posting, held_file)
    yield from host.secrets(held)

    def private() -> str:
        site_keys.release_key(settings.aggregator, settings.identity.folder if settings.identity else None)
        return f"{release_key} can sign"

    advice = "cloud-aggregator init makes one; restore it from a backup where gateways trust it already"
    yield guarded("release key", (signing.KeyFileError,), advice, private)
    if settings.identity is not None:
        yield root_key(settings.identity)
        yield from denied(settings.identity, store)


def root_key(spec: Identity) -> Finding:
    """Return whether there is a root key, and that it is not here, where whoever takes this machine would have it."""
    from fedgate.cloud_aggregator.pki import site_keys

    if not (spec.folder / site_keys.STATEMENT).exists():
        advice = "call 'cloud-aggregator init' with its folder again, and enrol the gateways anew"
        return warning("root key", "this site has none, so its keys can be changed at every gateway only", advice)
    if spec.root_key is not None and spec.root_key.exists():
        advice = "move it to a place that is not this machine, with a copy; 'cloud-aggregator keys' alone needs it"
        return warning("root key", f"{spec.root_key} is on this machine", advice)
    return ok("root key", "not on this machine" if spec.root_key is None else f"not on this machine at {spec.root_key}")


def denied(spec: Identity, store: Path | DatabaseUrl) -> Iterator[Finding]:
    """Yield who is denied at the broker until that is restarted, if anybody is."""
    from fedgate.cloud_aggregator.pki.quarantine import denied_names
    from fedgate.cloud_aggregator.storage.store import Store, StoreError
    from fedgate.config.identity.pki import IdentityError

    try:
        with closing(Store(store, create=False)) as opened:
            names = denied_names(spec, opened.registry())
    except StoreError:  # of which another finding tells
        return
    except IdentityError as error:
        yield failure("broker", one_line(error), "as it says")
        return
    if names:
        text = f"denied until it is restarted, as another device may still be connected: {', '.join(sorted(names))}"
        yield warning("broker", text, "restart the broker: systemctl restart fedgate-broker")


def _training(settings: AggregatorSettings) -> Iterator[Finding]:
    from fedgate.cloud_aggregator.runtime import defence
    from fedgate.config.settings.checks import check_budget
    from fedgate.models.arrays import generator
    from fedgate.models.federated.algorithm import Algorithm

    made: list[Algorithm] = []

    def built() -> str:
        made.append(defence.algorithm_of(settings, defence.read(settings)))
        check_budget(settings.algorithm, settings.rounds, settings.features)
        return f"{settings.algorithm.name}, defence {settings.defence.kind}"

    # MaterialError and LabelledError are ValueErrors, as is what an algorithm says of its settings.
    yield guarded("training", (ValueError, OSError), "correct [algorithm], [defence] or the files it names", built)
    if not made:
        return
    server = made[0].start(generator(settings.algorithm.seed, 0, "cloud"))
    state = sum(array.nbytes for arrays in (server.shared, server.kept) for array in arrays.values())
    bounded = all(phase.tally.bounded for phase in made[0].phases)
    gateways, update = _gateways(settings.aggregator.store), settings.limits.max_update_bytes
    # The state, the sum and both as bytes; and what is on its way: of each gateway one update, whole at the end.
    needed = 4 * state + (1 if bounded else gateways) * update + gateways * update
    free = _available_bytes()
    each = "" if bounded else ", and its updates are kept until the round closes"
    text = f"up to {needed // MIB} MiB with {gateways} gateways sending at once{each}; {free // MIB} MiB are free"
    if free and needed > free:
        yield warning("training memory", text, "a smaller limits.max_update_bytes, rounds.fraction, or more memory")
    else:
        yield ok("training memory", text)
    if settings.algorithm.settings.get("masking") is not None:
        yield cohort(settings)


def cohort(settings: AggregatorSettings) -> Finding:
    """Say whether enough gateways are enrolled, or have ever spoken where nobody is enrolled, for a masked sum."""
    from fedgate.cloud_aggregator.storage.store import Store, StoreError
    from fedgate.models.federated.masking import Masking

    fewest = Masking.model_validate(settings.algorithm.settings["masking"]).fewest
    try:
        with closing(Store(settings.aggregator.store, create=False)) as opened:
            names = opened.registry().admitted or {row["gateway"] for row in opened.rows("gateways", "gateway")}
            named = {name for key, name in opened.registry().members.items() if key in _members(settings)}
    except StoreError:  # which is a finding of its own, or there is none yet
        names, named = set(), set()
    enrolled = f"{len(names)} gateways are enrolled"
    if _members(settings):
        names, enrolled = named, f"{enrolled}, {len(named)} of them members that the root key names"
    text = f"{enrolled}, and a masked sum is opened only if {fewest} have something new"
    if len(names) >= fewest:
        return ok("masking", text)
    return warning("masking", text, "enrol more gateways, have 'keys members' name them, or set masking.fewest to 3")


def _members(settings: AggregatorSettings) -> tuple[str, ...]:
    """Return who may take part in masked sums; empty where anybody may, or where the statement cannot be read, which is
    a finding of its own.
    """
    from fedgate.cloud_aggregator.pki import site_keys
    from fedgate.config.identity.signing import KeyFileError

    try:
        keys = None if settings.identity is None else site_keys.stated(settings.identity.folder)
    except KeyFileError:
        return ()
    return keys.members if keys else ()


def _gateways(store: Path | DatabaseUrl) -> int:
    from fedgate.cloud_aggregator.storage.store import Store, StoreError

    try:
        with closing(Store(store, create=False)) as opened:
            return max(len(opened.rows("gateways", "gateway")), 1)
    except StoreError:  # which is a finding of its own
        return 1


def _available_bytes() -> int:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", MEMORY.read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _store(place: Path | DatabaseUrl) -> Iterator[Finding]:
    from fedgate.cloud_aggregator.backup.facts import describe_facts, facts_of
    from fedgate.cloud_aggregator.storage.store import BackupNote, Store, StoreError, database_of

    database, notes = database_of(place), list[BackupNote | None]()

    def check() -> str:
        if not database.exists():
            return f"{database.name} is made when the aggregator starts"
        with closing(Store(place, create=False)) as store, database.snapshot() as db:
            notes.append(store.backup_note())
            return f"{database.name} is whole: {describe_facts(facts_of(db))}"

    advice = "stop the service, restore store and release key from one backup"
    yield guarded("store", (StoreError,), advice, check)
    if notes:
        yield last_backup(notes[0], time.time_ns())


def last_backup(held: BackupNote | None, now_ns: int) -> Finding:
    """Return how old the last backup of a store is."""
    advice = "cloud-aggregator backup FILE, once a day: docs/reference/operations.md, Back up"
    if held is None:
        return warning("backup", "none was made of this store, or nobody knows of it", advice)
    keys = "with the keys" if held.has_keys else "without the keys, which are kept apart"
    text = f"of {cli.moment(held.made_ns)}, {keys}: {held.file}"
    if held.made_ns > now_ns:
        return warning("backup", f"{text}; that is to come", "set the clock")
    days = (now_ns - held.made_ns) / DAY_NS
    return warning("backup", f"{days:.0f} days old, {text}", advice) if days > BACKUP_DAYS else ok("backup", text)


def _webhook(spec: Webhook) -> Iterator[Finding]:
    from fedgate.cloud_aggregator.runtime import webhook_client
    from fedgate.config.settings.settings import SettingsError

    def reached() -> str:
        webhook_client.check(spec)
        port = spec.parts.port or (443 if spec.parts.scheme == "https" else 80)
        with socket.create_connection((spec.parts.hostname or "", port), timeout=REACH_S):
            return f"{spec.parts.hostname}:{port} takes connections (nothing was posted)"

    yield guarded("webhook", (OSError, SettingsError), "alarms wait in the queue; check webhook.url", reached)


def _broker(settings: AggregatorSettings, until_s: float) -> Iterator[Finding]:
    from fedgate.config.doctor import broker as doctor_broker
    from fedgate.config.doctor import network
    from fedgate.config.protocol.topics import CLOUD

    site = settings.aggregator.site
    user = settings.broker.user or f"{CLOUD}.{site}"
    if settings.broker.ca_file is not None:
        advice = "cloud-aggregator init FOLDER --renew-server"
        yield from network.certificates(settings.broker, user, advice)
    found, is_there = network.reach(settings.broker)
    yield from found
    if is_there:
        limit = settings.limits.max_payload_bytes
        yield from doctor_broker.examine(doctor_broker.of_aggregator(settings.broker, user, site, limit), until_s)


def broker_file(path: Path, largest_bytes: int) -> Iterator[Finding]:
    """Yield what a broker's configuration beside the settings says, for what no client can see."""
    if not path.exists():
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        yield warning("broker file", one_line(error), "let this user read it")
        return
    found = dict(line.strip().partition(" ")[::2] for line in lines if line.strip() and not line.startswith("#"))
    name = path.name
    if found.get("persistence", "false") != "true":
        text = f"{name}: what the broker holds for others is gone when it restarts"
        yield warning("broker file", text, "persistence true")
    elif 0 < int(found.get("max_packet_size", "0")) < largest_bytes + 1_024:
        text = f"{name}: max_packet_size {found['max_packet_size']} is too small for {largest_bytes} and its topic"
        yield failure("broker file", text, "raise it")
    elif found.get("allow_anonymous") == "true" and "127.0.0.1" not in found.get("listener", ""):
        yield warning("broker file", f"{name} lets anybody in", "allow_anonymous false")
    else:
        yield ok("broker file", f"{name}: sessions and retained messages survive a restart of the broker")
