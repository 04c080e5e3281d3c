"""`cloud-aggregator users`: who may log in to the page, and what each may do there."""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path

from fedgate.config.runtime import cli
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.config.settings.web import ROLES, USERS, locate_folder

TEXT = """Say who may log in to the page, and what each may do there.

A viewer sees everything. An operator also acts on alarms: acknowledges, shelves, labels, assigns, fetches samples.
An admin also decides about releases, which asks for the password once more."""
EXAMPLES = """examples:
  cloud-aggregator users add ada --role admin -c aggregator.toml
      asks for a password twice; of a name that is there it changes role and password
  echo "$PASSWORD" | cloud-aggregator users add ben --role viewer --password-stdin -c aggregator.toml
  cloud-aggregator users list -c aggregator.toml
  cloud-aggregator users remove ben -c aggregator.toml
      is logged out at once
"""


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "say who may log in to the page: add, list, remove"
    parts = commands.add_group("users", text, description=TEXT, examples=EXAMPLES, default_part="list")
    parts.add("list", _list, "list who may log in")
    new = parts.add("add", _add, "let somebody log in, or change role and password")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--role", choices=ROLES, default="viewer", help="(default: viewer)")
    new.add_argument("--password-stdin", action="store_true", help="read the password from standard input, one line")
    parts.add("remove", _remove, "let somebody not log in any more").add_argument("name", metavar="NAME")


def _locate(arguments: argparse.Namespace) -> Path:
    settings = load(arguments.config, AggregatorSettings)
    return locate_folder(settings.web, settings.aggregator.store) / USERS


def _add(arguments: argparse.Namespace) -> None:
    from fedgate.cloud_aggregator.web.users import put_user

    path = _locate(arguments)
    is_new = put_user(path, arguments.name, arguments.role, _read_password(is_piped=arguments.password_stdin))
    text = f"{arguments.name} {'may log in' if is_new else 'has another password'}, as {arguments.role}"
    cli.show(arguments, {"name": arguments.name, "role": arguments.role, "is_new": is_new}, text)


def _read_password(*, is_piped: bool) -> str:
    if is_piped:
        return sys.stdin.readline().rstrip("\n")
    try:
        password, again = getpass.getpass("password: "), getpass.getpass("once more: ")
    except EOFError:
        raise ValueError("no password was given: expected one at the terminal, or --password-stdin") from None
    if again != password:
        raise ValueError("the two passwords are not the same; nothing was changed")
    return password


def _list(arguments: argparse.Namespace) -> None:
    from fedgate.cloud_aggregator.web.users import read_users

    rows = [{"name": name, "role": user.role} for name, user in sorted(read_users(_locate(arguments)).items())]
    cli.show(arguments, rows, cli.format_rows(("name", "role"), rows))


def _remove(arguments: argparse.Namespace) -> None:
    from fedgate.cloud_aggregator.web.users import remove_user

    remove_user(_locate(arguments), arguments.name)
    cli.show(arguments, {"name": arguments.name}, f"{arguments.name} may not log in any more")
