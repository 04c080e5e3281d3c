"""How a command has something done by the service: an order in its store, and a wait for the answer."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgate.config.runtime import cli
from fedgate.config.settings.settings import SiteSettings, load

WAIT_S = 10.0
LOOK_S = 0.1


@dataclass(frozen=True)
class OrderAnswer:
    """What became of an order."""

    number: int | None  # None: none was given
    is_done: bool
    text: str
    problem: str

    def shown(self, arguments: argparse.Namespace) -> int:
        """Print it as `arguments.json` wants it, and return an exit code."""
        if self.problem and not arguments.json:
            cli.complain("cloud-aggregator", self.problem)
            return cli.SERVICE_ERROR
        report = {"order": self.number, "is_done": self.is_done, "text": self.problem or self.text}
        print(json.dumps(report, indent=2) if arguments.json else self.text)
        return cli.SERVICE_ERROR if self.problem else 0


def placed(config: Path, kind: str, body: dict[str, Any]) -> OrderAnswer:
    """Give an order to the service with these settings and wait for its answer.

    A service that does not run carries it out when it is started; that is said, and is no failure.
    """
    from fedgate.cloud_aggregator.storage.store import Store

    with closing(Store(load(config, SiteSettings).aggregator.store, create=False)) as store:
        number = store.order(kind, body)
        until_s = time.monotonic() + WAIT_S
        while (answer := store.answer(number)) is None and time.monotonic() < until_s:
            time.sleep(LOOK_S)
    later = f"order {number} waits: the service takes it as soon as it runs, and 'cloud-aggregator orders' tells"
    text, problem = answer or (later, "")
    return OrderAnswer(number, answer is not None and not problem, text, problem)


def ordered(arguments: argparse.Namespace, kind: str, body: dict[str, Any]) -> int:
    """Give an order to the service of `arguments.config`, print its answer and return an exit code."""
    return placed(arguments.config, kind, body).shown(arguments)
