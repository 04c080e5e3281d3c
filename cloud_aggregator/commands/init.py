"""`cloud-aggregator init`: everything that a site needs before its first start, in one folder."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import shlex
import socket
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from fedgate.cloud_aggregator.pki import site_folder, site_keys
from fedgate.cloud_aggregator.pki.authority import ACCESS_LIST, REVOKED, SERVER, Authority, open_authority
from fedgate.config.identity import pki
from fedgate.config.protocol.topics import CLOUD, ID
from fedgate.config.runtime import cli

EXAMPLES = """examples:
  cloud-aggregator init site --site bridge --host aggregator.example
      the folder of site "bridge", whose gateways reach broker and aggregator under that name
  cloud-aggregator init site --site bridge --host aggregator.example --root-key /media/usb/bridge-root.key
      the same, with the root key on a medium that is taken away
  cloud-aggregator init site --renew-server --host new-name.example
      new certificates for broker and aggregator, which keep their keys; the broker takes them on its next SIGHUP
  cloud-aggregator init trial --loopback
      without certificates, for a broker on this machine only: to try things
"""
PORT, LOOPBACK_PORT = 8_883, 1_883
LOCAL = ("localhost", "127.0.0.1")
SITE = "bridge"  # what the templates call it
HOST = re.compile(r"[A-Za-z0-9.:-]{1,253}")
BROKER_TABLE = re.compile(r"^\[broker\]\n.*?\n\n", re.MULTILINE | re.DOTALL)
TLS = 'host = "{host}"\nport = {port}\nca_file = "ca.pem"\ncertificate_file = "{name}.pem"\nkey_file = "{name}.key"\n'
CLOUD_IDENTITY = """
# Who belongs to the site. Only gateways that were enrolled count: 'cloud-aggregator gateways --help'.
[identity]
folder = "."                             # with ca.key, which stays here; the broker reads what else is in it
root_key = {root_key}  # where it was written: belongs off this machine, and is needed to change keys alone
broker_pid_file = "mosquitto.pid"        # a broker of the same user on this machine; for any other:
# reload_command = ["systemctl", "reload", "mosquitto"]
# restart_command = ["pkill", "-F", "{folder}/mosquitto.pid"]  # where a service manager starts it again; see --replace
certificate_days = 90                    # of a gateway; it renews it by itself after two thirds
grace_days = 365                         # for which a gateway that was away may still renew what has expired

[enrolment]
listen = "0.0.0.0:{enrolment_port}"
address = "{host}:{enrolment_port}"      # what gateways are told; a name that this machine has for them
"""
GATEWAY_IDENTITY = """
# 'gateway-agent enrol' fetches ca.pem, gateway.pem, root.pub, keys.json and release.pub. All but root.pub are replaced
# by themselves: late in the life of the certificate, and where the site changes its keys.
[identity]
enrolment = "{host}:{enrolment_port}"
"""
AS_ROOT = (
    "made as root: the keys are root's, and mosquitto.conf makes the broker run as root. For services of another user "
    "change both, or let that user call 'init'"
)


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "make keys, certificates, the broker's configuration and commented settings"
    command = commands.add_bare(
        "init", text, description=f"{text}; nothing that exists is overwritten.", examples=EXAMPLES
    )
    command.add_argument("folder", type=Path)
    command.add_argument("--site", default=SITE, help=f"name of the site (default: {SITE})")
    text = "name or address under which gateways reach this machine; may be repeated (default: this machine's name)"
    command.add_argument("--host", action="append", default=[], metavar="NAME", help=text)
    text = f"of the broker (default: {PORT}); enrolment listens on the one after it"
    command.add_argument("--port", type=int, default=None, help=text)
    text = (
        "where to write the root key, which signs all other keys and is needed to change them alone: outside of the "
        "folder, at best on a medium that leaves this machine (default: FOLDER-root.key)"
    )
    command.add_argument("--root-key", type=Path, default=None, metavar="PATH", help=text)
    kind = command.add_mutually_exclusive_group()
    kind.add_argument("--loopback", action="store_true", help="no certificates: for a broker on this machine only")
    kind.add_argument("--renew-server", action="store_true", help="make the certificates of broker and aggregator anew")
    command.set_defaults(act=_run)


def _run(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.folder
    port, root_file = _check(arguments, folder)
    if arguments.renew_server:
        _renew(folder, arguments.host)
        return
    site_folder.check(folder, arguments.site, loopback=arguments.loopback)
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    # First, since what else is there without it is that of a site which has lost it.
    site_folder.make_release_key(folder)
    if arguments.loopback:
        _write_loopback(folder, arguments.site, port)
        return
    _write_site(folder.resolve(), arguments.site, arguments.host, port, root_file.resolve())
    print(_fill_in(folder, root_file))
    if os.geteuid() == 0:
        cli.complain("cloud-aggregator", AS_ROOT)


def _check(arguments: argparse.Namespace, folder: Path) -> tuple[int, Path]:
    """Return the port of the broker and where the root key goes; raises `ValueError` for options that are not good."""
    if not ID.fullmatch(arguments.site):
        raise ValueError(f"--site: expected 1 to 64 of A-Z a-z 0-9 _ . -, got {arguments.site!r}")
    for host in arguments.host:
        if not HOST.fullmatch(host):
            raise ValueError(f"--host: expected a name or an address, got {host!r}")
    if arguments.loopback and arguments.host:
        raise ValueError("--host: with --loopback nobody reaches the broker from elsewhere; leave one of the two out")
    default = LOOPBACK_PORT if arguments.loopback else PORT
    port = default if arguments.port is None else arguments.port
    if not 0 < port < 65_535:
        raise ValueError(f"--port: expected 1 to 65534, got {port}")
    if arguments.root_key is not None and arguments.loopback:
        raise ValueError("--root-key: with --loopback nobody enrols, so no root key is made; leave one of the two out")
    whole = folder.resolve()
    root_file: Path = arguments.root_key or whole.with_name(f"{whole.name}-root.key")
    if root_file.resolve().is_relative_to(whole):
        raise ValueError(f"--root-key: expected a path outside of {folder}, which a thief or a backup takes as a whole")
    return port, root_file


def _fill_in(folder: Path, root_file: Path) -> str:
    from fedgate.models.federated.secure_aggregation.options import Masking

    settings = shlex.quote(str(folder / "aggregator.toml"))
    return (
        f"{folder}: ca.key, release.key, server.key and cloud.key stay here. Next:\n"
        f"  mosquitto -c {shlex.quote(str(folder / 'mosquitto.conf'))}\n"
        f"  cloud-aggregator run -c {settings}\n"
        f"  cloud-aggregator gateways token gateway-1 -c {settings}\n"
        "gateway.toml goes to every gateway, and 'gateway-agent enrol' fetches there what else it needs. Nobody is "
        f"enrolled yet; masked sums (algorithm.settings.masking) need {Masking().fewest} gateways, and 'doctor' counts "
        "them.\n"
        f"{root_file}: the root key. Take it off this machine, with a copy in another place: whoever has it has the "
        "site, and without it no key can be changed ('cloud-aggregator keys rotate')"
    )


def _renew(folder: Path, given: list[str]) -> None:

    authority = Authority(folder)
    hosts = dict.fromkeys([*LOCAL, *given] if given else authority.list_hosts())
    authority.write_own(site_folder.site_of(folder), hosts, datetime.now(UTC))
    until = f"{authority.own_end():%Y-%m-%d}"
    print(f"{folder}: server.pem for {', '.join(hosts)} and cloud.pem are good until {until}")


def _write_site(folder: Path, site: str, given: list[str], port: int, root_file: Path) -> None:

    here = socket.gethostname()
    hosts = dict.fromkeys([*LOCAL, *([here] if HOST.fullmatch(here) else []), *given])
    now = datetime.now(UTC)
    authority = open_authority(folder, site, now)
    if not (folder / SERVER).exists():
        authority.write_own(site, hosts, now)
    if not (folder / REVOKED).exists():
        authority.write_revoked([])
    if not (folder / site_keys.STATEMENT).exists():
        site_keys.make_root_key(folder, site, folder / site_keys.RELEASE, root_file, now)
    public = given[0] if given else here
    at = f"[{public}]" if ":" in public else public
    words = {"folder": folder, "host": at, "enrolment_port": port + 1, "root_key": json.dumps(str(root_file))}
    conf = _template("mosquitto.conf").replace("listener 8883", f"listener {port}")
    conf = conf.replace("user fedgate", f"user {pwd.getpwuid(os.geteuid()).pw_name}").replace(
        "/etc/fedgate", str(folder)
    )
    _write(folder / "mosquitto.conf", conf)
    _write(folder / ACCESS_LIST, fill_in(_template("mosquitto.acl"), site), pki.PRIVATE_MODE)
    aggregator = _put_broker(
        fill_in(_template("aggregator.toml"), site), TLS.format(host="localhost", port=port, name=CLOUD)
    )
    _write(folder / "aggregator.toml", aggregator + CLOUD_IDENTITY.format(**words))
    gateway = _put_broker(fill_in(_template("gateway.toml"), site), TLS.format(host=public, port=port, name="gateway"))
    _write(folder / "gateway.toml", gateway + GATEWAY_IDENTITY.format(**words))


def _write_loopback(folder: Path, site: str, port: int) -> None:
    for name in ("aggregator.toml", "gateway.toml"):
        _write(folder / name, fill_in(_template(name), site).replace("port = 1883", f"port = {port}", 1))
    conf = _template("mosquitto.loopback").replace("listener 1883", f"listener {port}")
    _write(folder / "mosquitto.conf", conf)
    print(
        f"{folder}: release.key stays here, release.pub and gateway.toml go to every gateway, aggregator.toml is "
        "yours, mosquitto.conf is the broker's; without certificates all of it is for this machine only"
    )


def fill_in(template: str, site: str) -> str:
    """Return a template with the name of the site in its place."""
    changed = template.replace(f"/v1/{SITE}/", f"/v1/{site}/").replace(f"{CLOUD}.{SITE}", f"{CLOUD}.{site}")
    return changed.replace(f'site = "{SITE}"', f'site = "{site}"')


def _put_broker(text: str, table: str) -> str:
    return BROKER_TABLE.sub(lambda _: f"[broker]\n{table}\n", text, count=1)


def _template(name: str) -> str:
    return (resources.files("fedgate.config") / name).read_text(encoding="utf-8")


def _write(path: Path, text: str, mode: int = 0o644) -> None:

    if not path.exists():
        pki.write(path, text.encode(), mode)
