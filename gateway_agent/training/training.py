"""The record of a gateway's part in trainings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import RoundOpen
from fedgate.gateway_agent.events import Effect, Save
from fedgate.models.arrays import Arrays, is_fleeting
from fedgate.models.federated.algorithm import ledger_of, outlives
from fedgate.models.records import replace

OWN, COUNTED, INVITED, PRIVACY = "own", "counted", "invited", "privacy"  # keys of stored blobs


@dataclass(frozen=True)
class Training:
    """What this gateway was asked for, has answered, and keeps for itself."""

    can_train: bool = False
    libraries: tuple[str, ...] = ()  # that some algorithms need, and that are installed here
    labelled: Arrays = field(default_factory=dict)  # windows of known condition, where the settings name some
    chain: bytes = b""  # from which the secret of the next exchange follows, `models.arrays.ratchet`; in memory alone
    own: Arrays = field(default_factory=dict)
    round: RoundOpen | None = None  # that is open
    running: RoundOpen | None = None  # that the child answers now
    answered: tuple[str, int] | None = None  # (run, round_index) of the last update made
    answered_before: dict[str, int] = field(default_factory=dict)  # of earlier runs: the last round answered, by run
    newest_training: int = 0  # the highest number of a training that this gateway was invited to
    awaited: str = ""  # the last update that said something, by its digest
    is_counted: bool = True  # the aggregator's receipt for it is here
    last_counted: str = ""  # the last update of which that is known
    failed: tuple[str, int] | None = None  # (run, round_index) of a training that failed
    retry_ns: int = 0  # not before then again
    remarks: dict[int, str] = field(default_factory=dict)  # phase -> what its latest training warned of
    refused_round: str = ""  # that this gateway was asked for and will not answer, see `round_number`


def save_own(training: Training) -> Save:
    """Return the effect that stores what stays on this gateway, which round it answered last and what it said of it."""
    answered = list(training.answered) if training.answered else None
    stored = {name: array for name, array in training.own.items() if not is_fleeting(name)}
    meta = {"answered": answered, "before": [*training.answered_before.items()], "remarks": [*training.remarks.items()]}
    return Save(OWN, wire.encode(stored, meta))


def save_invited(training: Training) -> Save:
    """Return the effect that stores to which training this gateway was invited: apart, for `own` may be megabytes."""
    return Save(INVITED, str(training.newest_training).encode())


def save_ledger(training: Training) -> list[Save]:
    """Return the effect that stores once more what was spent of this gateway's privacy, none where there is no account:
    one damaged row must not begin it anew.
    """
    ledger = ledger_of(training.own)
    return [Save(PRIVACY, wire.encode(ledger))] if ledger else []


def save_counted(training: Training) -> Save:
    """Return the effect that stores whether the last update was counted: apart, for `own` may be megabytes."""
    return Save(COUNTED, json.dumps([training.awaited, training.is_counted, training.last_counted]).encode())


def own_in(training: Training, run: str) -> Arrays:
    """Return what this gateway keeps for itself in a training; a new one starts from its normalisation alone, and from
    what was spent of its privacy.
    """
    is_same = training.answered is not None and training.answered[0] == run
    return {name: array for name, array in training.own.items() if is_same or outlives(name)}


def note_receipt(training: Training, name: str) -> tuple[Training, list[Effect]]:
    """Return the training after the aggregator has counted an item, and what is to be stored where it was awaited; it
    may have been given up here for lack of room.
    """
    if name != training.awaited or training.is_counted:
        return training, []
    training = replace(training, is_counted=True, last_counted=name)
    return training, [save_counted(training)]
