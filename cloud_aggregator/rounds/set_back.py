"""Whether this store is older than the training that its gateways know: a backup of an earlier day, put back.

Such an aggregator asks for rounds that were answered, and nobody answers twice. It does not begin anew by itself: any
gateway could then have it forget a training. It says so, where an operator looks.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedgate.cloud_aggregator.names import list_first
from fedgate.config.protocol.messages import Status, round_number

DIGITS_MAX = 18  # of the index of a round; what a gateway says is not to be trusted to be a number


def describe_set_back(gateways: Mapping[str, Status], run: str, round_index: int) -> str:
    """Return what is wrong where gateways have answered later rounds of this training than the present one; else
    nothing.
    """
    names = [name for name, one in gateways.items() if _index(one.answered, run) > round_index]
    if not names:
        return ""
    who = list_first(sorted(names))
    return (
        f"this store is older than what {who} have answered: it asks for round {round_index}, and they gave theirs to "
        "later ones of the same training. Put the newest store back, or set another [algorithm] seed, which begins a "
        "new training"
    )


def _index(answered: str, run: str) -> int:
    """Return which round of this training a gateway says that it has answered; -1 for none of it."""
    index = answered.removeprefix(round_number(run, 0)[:-1])
    is_number = index != answered and index.isdecimal() and len(index) <= DIGITS_MAX
    return int(index) if is_number else -1
