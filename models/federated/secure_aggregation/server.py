"""The cloud's part in a masked round: it passes on keys and shares, adds what it cannot read, unmasks the sum alone
(Bonawitz et al. 2017).

The exchanges need little, so the model rests in `server_state` in those that do not train, under `masking.model.`.
Whoever answers proves by a token that it is the one at that place of the roster; what is wrong with the input itself
nobody can see here, but a sum that no honest inputs make is thrown away. The model before the round stays as it is
until the end.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Arrays, Booleans, under
from fedgate.models.federated.protocol.algorithm import Phase, RoundFailedError, Server
from fedgate.models.federated.protocol.schema import Field, Schema, Shape, UpdateError, layout_of, numbers_in
from fedgate.models.federated.secure_aggregation.client import (
    BOX_BYTES,
    COMMITMENT,
    CONFIRMATION_SENT,
    CONFIRMED,
    HANDED,
    INPUT_SENT,
    LEAVES,
    LOST,
    MASKED,
    NO_PART,
    PART,
    POSTED,
    PRESENT,
    REVEALED,
    ROUND,
    SEALED,
    SHARES,
    SHARES_SENT,
    SIGNATURE,
    STEPS,
    TOKEN,
    VOUCHER,
)
from fedgate.models.federated.secure_aggregation.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    VOUCHER_BYTES,
    KeyAgreementError,
    add_mask,
    agreed,
    chained,
    is_signed,
    loaded,
    voucher_of,
)
from fedgate.models.federated.secure_aggregation.options import (
    AGREEMENT,
    CHANNEL,
    PREFIX,
    PUBLIC_KEYS,
    LeftOutWarning,
    Masking,
    Roster,
    RosterError,
    bytes_of,
    digest_of,
    prefixed,
    split,
    vouched_text,
)
from fedgate.models.federated.secure_aggregation.recovery import SENDER, check_one_each, masks_left
from fedgate.models.federated.secure_aggregation.ring import decoded, most_of

ROSTER = (*PUBLIC_KEYS, COMMITMENT, TOKEN)  # (n, 32) of each who began the round, in the order of the first
MODEL = "model."
ANY_KEY = bytes(KEY_BYTES)  # to try public keys with
# What is sent in each of the five exchanges; n is one of each gateway, so that rows stack up.
OF_KEY, OF_SIGNATURE = Field((1, KEY_BYTES), "bytes"), Field((1, SIGNATURE_BYTES), "bytes")
KEYS = {**dict.fromkeys(ROSTER, OF_KEY), VOUCHER: Field((1, VOUCHER_BYTES), "bytes")}
CONFIRMATION = {SIGNATURE: OF_SIGNATURE, TOKEN: OF_KEY}
LOST_MOST = 64  # 2 kB with each model; a gateway would have to miss as many failed rounds since its last input


def sealed_shares(masking: Masking) -> Schema:
    """Return the form of what is sent for the neighbours: a box for each, as many as there may be where nobody has
    begun yet.
    """

    def boxes(global_state: Mapping[str, Array]) -> Shape:
        roster = under(PREFIX, global_state).get(AGREEMENT)
        most = masking.neighbours if roster is None else masking.holders_of(len(roster)) - 1
        return (1, most, BOX_BYTES)

    return {SEALED: Field(boxes, "bytes"), PART: Field((1,), "bytes"), SIGNATURE: OF_SIGNATURE, TOKEN: OF_KEY}


def masked_input(inner: Schema) -> Schema:
    """Return the form of an update of this schema under masks: all its numbers as one vector."""

    def numbers(global_state: Mapping[str, Array]) -> Shape:
        return (numbers_in(layout_of(inner, global_state).values()),)

    return {MASKED: Field(numbers, "ring"), TOKEN: OF_KEY}


def revealed_shares(masking: Masking) -> Schema:
    """Return the form of what is revealed: a share for each neighbour and oneself, as many as there may be where no
    boxes were handed out yet.
    """

    def shares(global_state: Mapping[str, Array]) -> Shape:
        boxes = under(PREFIX, global_state).get(SEALED)
        return (1, 1 + (masking.neighbours if boxes is None else boxes.shape[1]), KEY_BYTES)

    return {SHARES: Field(shares, "bytes"), TOKEN: OF_KEY}


class Cloud(NamedTuple):
    """Judges and advances the five exchanges around one phase of the inner algorithm, the `number`-th, which keeps a
    running total where it `remembers`.
    """

    masking: Masking
    phase: Phase
    number: int
    remembers: bool

    def check_keys(self, _server: Server, update: Arrays) -> None:
        """Raise `UpdateError` for keys that nobody can agree with, of which one stands twice, or with a voucher for
        others.
        """
        if update[VOUCHER].any() and member_of(update) == "":
            raise UpdateError(f"{VOUCHER}: expected one for the keys beside it, or zeros, got that of other keys")
        for name in (AGREEMENT, CHANNEL):
            try:
                agreed(loaded(ANY_KEY), update[name].tobytes(), "trial", b"")
            except KeyAgreementError as error:
                raise UpdateError(f"{name}: {error}") from None
        if _repeated(update).any():
            raise UpdateError(f"expected {', '.join(ROSTER)} that differ, got one twice")

    def begin(self, server: Server, total: Arrays) -> Server:
        """Hand out the roster. Whoever says what another says, too, is left out, and so is the other: nobody can tell
        which of them took it from whom.
        """
        inner, mine = self._inner(server), split(server.server_state)[1]
        if (twice := _repeated(total)).any():
            _left_out("keys that another sent, too", total[AGREEMENT][twice])
            total = {name: rows[~twice] for name, rows in total.items()}
        outgoing = {name: total[name] for name in (*PUBLIC_KEYS, VOUCHER)} | _named(mine, LOST)
        roster = self._roster(total)
        most_of(len(roster.agreement), self.masking.quantum, self.masking.range)
        next_state = {**_model(inner), **{name: total[name] for name in ROSTER}, **_named(mine, LOST)}
        return _next(server, inner, {}, outgoing, next_state)

    def count_shares(self, server: Server, update: Arrays) -> Arrays:
        """Return the sealed shares of one place of the roster and its signature under this round; raises `UpdateError`
        for shares of anybody else.
        """
        mine = split(server.server_state)[1]
        part, most = int(update[PART][0]), LEAVES if self.remembers else NO_PART
        if part > most:
            raise UpdateError(f"{PART}: expected 0 to {most}, got {part}")
        sender, roster = _sender(mine, update, SHARES_SENT), self._roster(mine)
        if not is_signed(roster.signer[int(sender[0])].tobytes(), update[SIGNATURE].tobytes(), roster.here(part)):
            raise UpdateError(f"{SIGNATURE}: expected that of place {sender[0]} for this round")
        return {**{name: update[name] for name in (SEALED, PART, SIGNATURE)}, SENDER: sender}

    def pass_on(self, server: Server, total: Arrays) -> Server:
        """Say who has given its shares to so many that it can be unmasked, and hand out the model to train.

        Raises `RoundFailedError` for fewer of them than `fewest`.
        """
        inner, mine = self._inner(server), split(server.server_state)[1]
        roster, senders = self._roster(mine), check_one_each(total[SENDER], "shares")
        posted = _covered(roster, senders, self.masking.fewest)
        if len(posted) < self.masking.fewest:
            raise RoundFailedError(f"shares: expected at least {self.masking.fewest} gateways, got {len(posted)}")
        boxes, parts, signatures = (
            total[name][np.argsort(total[SENDER])][np.isin(senders, posted)] for name in (SEALED, PART, SIGNATURE)
        )
        outgoing = {ROUND: bytes_of(roster.digest), POSTED: np.array(posted), **_named(mine, LOST)}
        outgoing |= {PART: parts, SIGNATURE: signatures}
        next_state = {**_named(mine, *ROSTER, LOST), SEALED: boxes, POSTED: np.array(posted)}
        return _next(server, inner, inner.global_state, outgoing, next_state)

    def count_input(self, server: Server, update: Arrays) -> Arrays:
        """Return the masked input (P,) uint64 of one place of the roster, and that it is there."""
        mine = split(server.server_state)[1]
        present = np.zeros(len(mine[TOKEN]), dtype=np.uint64)
        present[_among(_sender(mine, update, INPUT_SENT), mine[POSTED])] = 1
        return {MASKED: update[MASKED], PRESENT: present}

    def add_up(self, server: Server, total: Arrays) -> Server:
        """Say whose inputs are in the sum; raises `RoundFailedError` for too few."""
        inner, mine = self._inner(server), split(server.server_state)[1]
        present = np.flatnonzero(total[PRESENT])
        if len(present) < self.masking.fewest or total[PRESENT].max() > 1:
            raise RoundFailedError(
                f"masked inputs: expected one of each of at least {self.masking.fewest} gateways (masking.fewest) with "
                f"something new, got those of {len(present)}, up to {total[PRESENT].max()} of one; what is new waits"
            )
        roster = self._roster(mine)
        smallest = roster.smallest_group(present.tolist())
        if smallest < self.masking.fewest:
            raise RoundFailedError(
                f"masked inputs: expected at least {self.masking.fewest} gateways wherever masks join them, got a "
                f"group of {smallest} that the others' dropping out cut off"
            )
        outgoing = {ROUND: bytes_of(roster.digest), PRESENT: present}
        next_state = {**mine, **_model(inner), PRESENT: present, MASKED: total[MASKED]}
        return _next(server, inner, {}, outgoing, {**next_state, HANDED: bytes_of(digest_of(server.global_state))})

    def count_confirmation(self, server: Server, update: Arrays) -> Arrays:
        """Return the signature of one place under whose inputs are in the sum; raises `UpdateError` for any other."""
        mine = split(server.server_state)[1]
        sender = _sender(mine, update, CONFIRMATION_SENT)
        place, roster = _among(sender, mine[POSTED]), self._roster(mine)
        text = roster.survivors(mine[PRESENT].tolist())
        if not is_signed(roster.signer[place].tobytes(), update[SIGNATURE].tobytes(), text):
            raise UpdateError(f"{SIGNATURE}: expected that of place {place} for those whose inputs are in the sum")
        return {SIGNATURE: update[SIGNATURE], SENDER: sender}

    def hand_out(self, server: Server, total: Arrays) -> Server:
        """Pass on who signed whose inputs are in the sum, and the shares; raises `RoundFailedError` for too few."""
        inner, mine = self._inner(server), split(server.server_state)[1]
        roster, confirmed = self._roster(mine), check_one_each(total[SENDER], "confirmations")
        fewest = int(roster.held_by(confirmed)[mine[PRESENT]].min())
        if fewest < roster.threshold:
            raise RoundFailedError(
                f"confirmations: expected those of {roster.threshold} holders of the shares of each whose input is in "
                f"the sum, got {fewest} of one"
            )
        outgoing = {ROUND: bytes_of(roster.digest), CONFIRMED: np.array(confirmed), SEALED: mine[SEALED]}
        outgoing[SIGNATURE] = total[SIGNATURE][np.argsort(total[SENDER])]
        next_state = {name: array for name, array in mine.items() if name != SEALED}
        return _next(server, inner, {}, outgoing, {**next_state, CONFIRMED: np.array(confirmed)})

    def count_reveal(self, server: Server, update: Arrays) -> Arrays:
        """Return the shares (1, holders, 32) that one place reveals; what is wrong in them is found when it is used."""
        mine = split(server.server_state)[1]
        sender = _sender(mine, update, REVEALED)
        _among(sender, mine[CONFIRMED])
        return {SHARES: update[SHARES], SENDER: sender}

    def unmask(self, server: Server, total: Arrays) -> Server:
        """Take all masks off the sum and advance the inner algorithm with it.

        Raises `RoundFailedError` for a sum that no honest inputs make.
        """
        inner, mine = self._inner(server), split(server.server_state)[1]
        roster, vector = self._roster(mine), mine[MASKED].copy()
        for key, is_taken_off in masks_left(roster, mine, total):
            add_mask(vector, key, taken_off=is_taken_off)
        layout = layout_of(self.phase.schema, inner.global_state)
        sums = decoded(vector, layout, self.masking.quantum)
        count = len(mine[PRESENT])
        most = count * (most_of(len(mine[POSTED]), self.masking.quantum, self.masking.range) + self.masking.quantum)
        for name, array in sums.items():
            if float(np.abs(array).max(initial=0.0)) > most:
                raise RoundFailedError(
                    f"{name}: expected sums up to {most:g} of {count} gateways, got {np.abs(array).max():g}: one of "
                    "them masked its input with other keys than it shared"
                )
        advanced = self.phase.advance(inner, sums)
        server_state = {**advanced.server_state, **prefixed(_named(mine, LOST))}
        return server._replace(
            global_state=advanced.global_state, server_state=server_state, phase=STEPS * advanced.phase
        )

    def _roster(self, keys: Arrays) -> Roster:
        try:
            return Roster.of(_named(keys, *PUBLIC_KEYS), self.masking)
        except RosterError as error:
            raise RoundFailedError(str(error)) from None

    def _inner(self, server: Server) -> Server:
        """Return the state of the inner algorithm, wherever its model rests."""
        (inner_state, mine), (global_state, _) = split(server.server_state), split(server.global_state)
        return server._replace(
            global_state=under(MODEL, mine) or global_state, server_state=inner_state, phase=self.number
        )


def _next(server: Server, inner: Server, global_state: Arrays, outgoing: Arrays, next_state: Arrays) -> Server:
    """Return the server in the next exchange, with what goes out and what of ours stays."""
    return server._replace(
        global_state={**global_state, **prefixed(outgoing)},
        server_state={**inner.server_state, **prefixed(next_state)},
        phase=server.phase + 1,
    )


def _model(inner: Server) -> Arrays:
    return {MODEL + name: array for name, array in inner.global_state.items()}


def _named(arrays: Arrays, *names: str) -> Arrays:
    return {name: arrays[name] for name in names if name in arrays}


def restore(server: Server, masking: Masking) -> Server:
    """Return the server without what is left of a round that came to nothing, its model where it belongs.

    Inputs of that round may have been acknowledged: then it joins the last of those that were lost (m, 32), which go
    out with the model, so that nobody takes his input for counted.
    """
    (inner_state, mine), (global_state, _) = split(server.server_state), split(server.global_state)
    lost = _named(mine, LOST)
    if server.phase % STEPS >= INPUT_SENT:
        digest = bytes_of(Roster.of(_named(mine, *PUBLIC_KEYS), masking).digest)[None]
        lost |= {LOST: np.concatenate([mine[LOST], digest])[-LOST_MOST:] if LOST in mine else digest}
    return server._replace(
        global_state=under(MODEL, mine) or global_state, server_state={**inner_state, **prefixed(lost)}
    )


def member_of(update: Arrays) -> str | None:
    """Return by whose key the first update of a masked round, which was admitted, is vouched for, as `voucher_of` tells
    it, in hexadecimal; empty where it has no voucher. None for any other update.
    """
    if update.keys() != {*ROSTER, VOUCHER}:
        return None
    keys = {name: update[name][0] for name in PUBLIC_KEYS}
    return voucher_of(update[VOUCHER].tobytes(), vouched_text(keys)).hex()


def _repeated(rows: Arrays) -> Booleans:
    """Return which rows (n,) of a roster hold a key, commitment or token that stands anywhere a second time."""
    listed = [[row.tobytes() for row in rows[name]] for name in ROSTER]
    counts = Counter(chain.from_iterable(listed))
    return np.array([any(counts[row] > 1 for row in of_one) for of_one in zip(*listed, strict=True)], dtype=bool)


def _left_out(why: str, agreement: Array) -> None:
    names = ", ".join(f"{key[:4].tobytes().hex()}..." for key in agreement)
    warnings.warn(f"gateways of the keys {names} are left out of this round: {why}", LeftOutWarning, stacklevel=3)


def _sender(mine: Arrays, update: Arrays, step: int) -> Array:
    """Return the place (1,) of the one who knows this token, after which its chain goes on to what it began with."""
    began = bytes_of(chained(update[TOKEN].tobytes(), step))
    found = np.flatnonzero((mine[TOKEN] == began).all(axis=1))
    if len(found) != 1:
        raise UpdateError(
            f"{TOKEN}: expected that of a gateway which began this round, got {began[:4].tobytes().hex()}..."
        )
    return found


def _among(sender: Array, places: Array) -> int:
    if sender[0] not in places:
        raise UpdateError(f"expected one of those who went along so far, got place {sender[0]} of the roster")
    return int(sender[0])


def _covered(roster: Roster, senders: list[int], fewest: int) -> list[int]:
    """Return those of whom enough others hold shares and are here, and whose masks join at least the `fewest`, and
    without whom that still holds for the rest.
    """
    while True:
        held = roster.held_by(senders)
        joined = set[int]().union(*(group for group in roster.groups_of(senders) if len(group) >= fewest))
        covered = [place for place in senders if held[place] >= roster.threshold and place in joined]
        if len(covered) == len(senders):
            return senders
        senders = covered
