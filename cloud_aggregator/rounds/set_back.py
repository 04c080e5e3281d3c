"""Whether a store is older than what gateways have answered: an operator's backup, which no round can go on from."""

from __future__ import annotations

from collections.abc import Mapping

from fedgate.cloud_aggregator.names import list_first
from fedgate.config.protocol.messages import round_number

DIGITS_MAX = 18  # of the index of a round; what a gateway says is not to be trusted to be a number


def describe_set_back(answered: Mapping[str, str], run: str, round_index: int) -> str:
    """Return what is wrong where gateways have answered, as their statuses say, later rounds of this training than the
    present one; else nothing.

    This store is then a backup of an earlier day, put back. Such an aggregator asks for rounds that were answered, and
    nobody answers twice. It does not begin anew by itself, or any gateway could have it forget a training. It says so
    where an operator looks.
    """
    names = [name for name, last in answered.items() if _find_round(last, run) > round_index]
    if not names:
        return ""
    who = list_first(sorted(names))
    return (
        f"this store is older than what {who} have answered: it asks for round {round_index}, and they gave theirs to "
        "later ones of the same training. Put the newest store back, or set another [algorithm] seed, which begins a "
        "new training"
    )


def _find_round(answered: str, run: str) -> int:
    """Return which round of this training a gateway says that it has answered; -1 for none of it."""
    index = answered.removeprefix(round_number(run, 0)[:-1])
    is_number = index != answered and index.isdecimal() and len(index) <= DIGITS_MAX
    return int(index) if is_number else -1
