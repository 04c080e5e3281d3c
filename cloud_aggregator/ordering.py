"""How a command has something done by the service: an order in its store, and a wait for the answer."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from typing import Any

from config.settings import AggregatorSettings, load

WAIT_S = 10.0
LOOK_S = 0.1
REFUSED = 1


def ordered(arguments: argparse.Namespace, kind: str, body: dict[str, Any]) -> int:
    """Give an order to the service whose settings `arguments.config` names, print its answer and return an exit code.

    A service that does not run carries it out when it is started; that is said, and is no failure.
    """
    from cloud_aggregator.store import Store

    with closing(Store(load(arguments.config, AggregatorSettings).aggregator.store, create=False)) as store:
        number = store.order(kind, body)
        until_s = time.monotonic() + WAIT_S
        while (answer := store.answer(number)) is None and time.monotonic() < until_s:
            time.sleep(LOOK_S)
    text, problem = answer or (f"order {number} waits: the service takes it as soon as it runs", "")
    if problem and not arguments.json:
        sys.stderr.write(f"cloud-aggregator: error: {problem}\n")
        return REFUSED
    said = {"order": number, "is_done": answer is not None and not problem, "text": problem or text}
    print(json.dumps(said, indent=2) if arguments.json else text)
    return REFUSED if problem else 0
