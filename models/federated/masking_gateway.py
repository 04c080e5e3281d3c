"""A gateway's part in a masked round: keys, shares, masked input, and what it reveals so that the sum can be unmasked.

What it must remember stands in `own` under `masking.`: the secret of the round, from which every key follows, and how
far it has gone. It goes each step once: a second input under the same masks, or a second answer about who dropped out,
would betray it. With its last step it forgets the secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from models.arrays import COUNTED, FEATURES, Array, Arrays, parted
from models.federated.algorithm import Phase, Server
from models.federated.contributions import BEFORE, weight_of
from models.federated.masking import (
    AGREEMENT,
    CHANNEL,
    Masking,
    Roster,
    RosterError,
    bytes_of,
    prefixed,
    split,
)
from models.federated.masking_keys import (
    KEY_BYTES,
    TAG_BYTES,
    Keys,
    add_mask,
    agreed,
    chained,
    coefficients,
    derived,
    loaded,
    public_key,
    sealed,
    secret_of,
    to_bytes,
    to_number,
    unsealed,
)
from models.federated.ring import LAYOUT, check_units, encoded, most_of
from models.federated.shamir import shares_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

COMMITMENT, TOKEN, SEALED, SHARES, MASKED = "commitment", "token", "sealed", "shares", "masked"  # of updates
ROUND, POSTED, PRESENT, LOST = "round", "posted", "present", "lost"  # of `shared`, under the prefix
SECRET, STAGE, PLACE, INPUT, WAS_COUNTED = "secret", "stage", "place", "input", "counted"  # of `own`, under the prefix
STEPS = 4
KEYS_SENT, SHARES_SENT, INPUT_SENT, REVEALED = range(STEPS)
BOX_BYTES = 2 * KEY_BYTES + TAG_BYTES  # a share of the seed and one of the key


class Gateway(NamedTuple):
    """The training of each of the four exchanges around one phase of the inner algorithm."""

    masking: Masking
    phase: Phase

    def keys(self, shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        """Begin a round with new keys, whatever became of the one before."""
        del shared, rng
        if _is_silent(data):
            return own, {}
        inner, mine = split(own)
        secret = secret_of(data)
        keys = Keys.of(secret)
        update = {
            AGREEMENT: public_key(keys.agreement),
            CHANNEL: public_key(keys.channel),
            COMMITMENT: derived(keys.seed, "commitment"),
            TOKEN: chained(keys.token, STEPS - 1),
        }
        mine = {**_history(mine, data), SECRET: bytes_of(secret), STAGE: np.array(KEYS_SENT)}
        return {**inner, **prefixed(mine)}, {name: bytes_of(raw)[None] for name, raw in update.items()}

    def shares(self, shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        """Send every neighbour its shares of this gateway's two secrets, each under a key of its own."""
        del rng
        (inner, mine), told = split(own), split(shared)[1]
        if _is_silent(data) or _stage(mine) != KEYS_SENT:
            return own, {}
        roster, keys = Roster.of(told, self.masking), Keys.of(mine[SECRET].tobytes())
        found = np.flatnonzero((roster.agreement == bytes_of(public_key(keys.agreement))).all(axis=1))
        if len(found) == 0:  # its keys came too late, or were refused
            return own, {}
        place, others = int(found[0]), roster.neighbours_of(int(found[0]))
        texts, channel = _share_texts(keys, roster, place, others), loaded(keys.channel)
        boxes = [
            sealed(agreed(channel, roster.channel[other].tobytes(), "share", roster.pair(place, other)), text)
            for other, text in zip(others, texts, strict=True)
        ]
        mine = {**mine, AGREEMENT: roster.agreement, CHANNEL: roster.channel, PLACE: np.array(place)}
        update = {SEALED: bytes_of(b"".join(boxes)).reshape(1, -1, BOX_BYTES), TOKEN: _token(keys, SHARES_SENT)}
        return {**inner, **prefixed({**mine, STAGE: np.array(SHARES_SENT)})}, update

    def masked_input(
        self, shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator
    ) -> tuple[Arrays, Arrays]:
        """Train, and send the inner update under masks. What is wrong with it is found here, as the cloud cannot.

        Raises `UpdateError` where the inner algorithm would refuse it, `RingError` for values that could make a sum
        wrap or would be lost in rounding, both before there is a mask.
        """
        (inner, mine), (model, told) = split(own), split(shared)
        if _is_silent(data) or _stage(mine) != SHARES_SENT:
            return own, {}
        roster, place = Roster.of(mine, self.masking), int(mine[PLACE])
        if not _is_of(told, roster) or place not in (posted := _places(told, POSTED, roster)):
            return own, {}  # its shares came too late
        self._check_cover(roster, place, posted)
        counted = np.array(_was_counted(mine, told))
        after, update = self.phase.train(model, inner, {**data, COUNTED: counted}, rng)
        if not update:
            return {**after, **prefixed(mine)}, {}
        # Of an algorithm that sends changes: what the cloud has counted of this gateway.
        before = parted(after).get(BEFORE, {})
        admitted = self.phase.admit(Server(model, before), update)
        is_solved = self.phase.tally.bears == "nothing"
        check_units(admitted, {**model, **before}, self.masking.quantum, each=is_solved)
        most = most_of(len(posted), self.masking.quantum, self.masking.range)
        vector, layout = encoded(admitted, self.masking.quantum, most)
        keys = Keys.of(mine[SECRET].tobytes())
        add_mask(vector, derived(keys.seed, "self mask", roster.digest))
        agreement = loaded(keys.agreement)
        for other in sorted(set(roster.neighbours_of(place)) & set(posted)):
            add_mask(vector, mask_key(agreement, roster, place, other), taken_off=other < place)
        history = {INPUT: bytes_of(roster.digest), STAGE: np.array(INPUT_SENT), POSTED: np.array(posted)}
        mine = {name: array for name, array in mine.items() if name != WAS_COUNTED} | history
        return {**after, **prefixed(mine)}, {MASKED: vector, LAYOUT: layout, TOKEN: _token(keys, INPUT_SENT)}

    def reveal(self, shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        """Send one share of each neighbour: of the seed of its own mask if its input is here, else of its private key.

        Raises `RosterError` where so few inputs are here that their sum would tell of one.
        """
        del rng
        (inner, mine), told = split(own), split(shared)[1]
        if _is_silent(data) or _stage(mine) != INPUT_SENT:
            return own, {}
        roster, place = Roster.of(mine, self.masking), int(mine[PLACE])
        if not _is_of(told, roster) or place not in (present := _places(told, PRESENT, roster)):
            # Its input came too late, or was left out: what is left for the cloud is the key, the seed stays hidden.
            left_out = {WAS_COUNTED: np.array(False)} if _is_of(told, roster) else {}
            return {**own, **prefixed(left_out)}, {}
        posted = [int(other) for other in mine[POSTED]]
        group = roster.group_of(place, present)
        if len(group) < self.masking.fewest or not set(present) <= set(posted):
            raise RosterError(
                f"present: expected at least {self.masking.fewest} (masking.fewest) of those who sent shares, joined "
                f"by masks with each other, got {len(present)}, {len(set(present) - set(posted))} of them others and "
                f"{len(group)} joined with this gateway"
            )
        keys, boxes = Keys.of(mine[SECRET].tobytes()), told.get(SEALED)
        if boxes is None or boxes.shape != (len(posted), roster.holders.shape[1] - 1, BOX_BYTES):
            raise RosterError(f"{SEALED}: expected one row of boxes for each who sent shares, got {sorted(told)}")
        texts = _held(keys, roster, place, posted, boxes)
        kept = [text[:KEY_BYTES] if other in present else text[KEY_BYTES:] for other, text in texts.items()]
        rows = bytes_of(b"".join(kept)).reshape(1, -1, KEY_BYTES)
        ended = {**_history(mine, data), STAGE: np.array(REVEALED)}
        return {**inner, **prefixed(ended)}, {SHARES: rows, TOKEN: _token(keys, REVEALED)}

    def _check_cover(self, roster: Roster, place: int, posted: list[int]) -> None:
        """Refuse to send where too few others mask the same sum, or hold shares to unmask it."""
        holders, group = int(roster.held_by(posted)[place]), roster.group_of(place, posted)
        if len(group) < self.masking.fewest or holders < roster.threshold:
            raise RosterError(
                f"posted: expected shares of at least {self.masking.fewest} gateways (masking.fewest) joined by masks "
                f"with this one, {roster.threshold} of them holders of mine, got {len(group)} and {holders}"
            )


def mask_key(private: X25519PrivateKey, roster: Roster, place: int, other: int) -> bytes:
    """Return the key of the mask that two places share: the lower one adds it, the other takes it off."""
    context = roster.pair(min(place, other), max(place, other))
    return agreed(private, roster.agreement[other].tobytes(), "mask", context)


def _is_silent(data: Arrays) -> bool:
    """Tell whether a gateway has no rows; one that leaves may still have something to take back."""
    return len(data[FEATURES]) == 0 and weight_of(data) > 0.0


def _stage(mine: Arrays) -> int:
    return int(mine.get(STAGE, REVEALED))


def _is_of(told: Arrays, roster: Roster) -> bool:
    return ROUND in told and told[ROUND].tobytes() == roster.digest


def _places(told: Arrays, name: str, roster: Roster) -> list[int]:
    """Return places in rising order; raises `RosterError` for what are none."""
    found = [int(place) for place in np.ravel(told.get(name, np.zeros(0)))]
    if found != sorted(set(found)) or not set(found) <= set(range(len(roster.agreement))):
        raise RosterError(f"{name}: expected rising places in a roster of {len(roster.agreement)}, got {found}")
    return found


def _token(keys: Keys, step: int) -> Array:
    return bytes_of(chained(keys.token, STEPS - 1 - step))[None]


def _share_texts(keys: Keys, roster: Roster, place: int, others: Iterable[int]) -> list[bytes]:
    """Return what each of the others holds of a gateway: its share of the seed and its share of the private key."""
    points, count = [other + 1 for other in others], roster.threshold - 1
    drawn = coefficients(keys.dealer, roster.pair(place, place), 2 * count)
    seeds = shares_of(to_number(keys.seed), drawn[:count], points)
    privates = shares_of(to_number(keys.agreement), drawn[count:], points)
    return [to_bytes(seed) + to_bytes(private) for seed, private in zip(seeds, privates, strict=True)]


def _held(keys: Keys, roster: Roster, place: int, posted: list[int], boxes: Array) -> dict[int, bytes]:
    """Return what this gateway holds of each of its neighbours and itself, zeros where it holds nothing."""
    texts: dict[int, bytes] = dict.fromkeys(map(int, roster.holders[place]), bytes(2 * KEY_BYTES))
    channel = loaded(keys.channel)
    for row, other in enumerate(posted):
        if other != place and other in texts:
            key = agreed(channel, roster.channel[other].tobytes(), "share", roster.pair(other, place))
            text = unsealed(key, boxes[row, roster.neighbours_of(other).index(place)].tobytes())
            texts[other] = text or texts[other]
    (texts[place],) = _share_texts(keys, roster, place, [place])
    return texts


def _history(mine: Arrays, data: Arrays) -> Arrays:
    """Return the round of this gateway's last input and whether the cloud counted it: the next call is told so."""
    if INPUT not in mine:
        return {}
    return {INPUT: mine[INPUT], WAS_COUNTED: np.asarray(mine.get(WAS_COUNTED, data.get(COUNTED, np.array(True))))}


def _was_counted(mine: Arrays, told: Arrays) -> bool:
    """Tell whether this gateway's last input is in the model: it was counted, and its sum was unmasked."""
    if INPUT not in mine:
        return True
    is_lost = LOST in told and bool((told[LOST] == mine[INPUT]).all(axis=1).any())
    return bool(mine[WAS_COUNTED]) and not is_lost
