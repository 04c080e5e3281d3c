"""A gateway's part in a masked round: keys, shares, masked input, whose inputs it takes to be in the sum, and what it
reveals so that the sum can be unmasked (Bonawitz et al. 2017).

What it must remember stands in `local_state` under `masking.`: the secret of the round, from which every key follows,
and how far it has gone. It goes each step once: a second input under the same masks, or a second answer about who
dropped out, would betray it. No store may hold the secret (`fedgate.models.arrays.is_fleeting`), or an image of it that
is put back would go a step again; so whose process ends drops out of the round. With its last step it forgets the
secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedgate.models.arrays import COUNTED, IDENTITY, MEMBERS, Array, Arrays, parted
from fedgate.models.federated.protocol.algorithm import Phase, Server, Trained
from fedgate.models.federated.protocol.contributions import BEFORE, weight_of
from fedgate.models.federated.secure_aggregation.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
    VOUCHER_BYTES,
    Keys,
    add_mask,
    agreed,
    chained,
    coefficients,
    derived,
    is_signed,
    loaded,
    public_key,
    sealed,
    secret_of,
    signed,
    signing_key,
    to_bytes,
    to_number,
    unsealed,
    vouched,
    voucher_of,
)
from fedgate.models.federated.secure_aggregation.options import (
    AGREEMENT,
    CHANNEL,
    PUBLIC_KEYS,
    SIGNER,
    Masking,
    Roster,
    RosterError,
    bytes_of,
    digest_of,
    prefixed,
    split,
    vouched_text,
)
from fedgate.models.federated.secure_aggregation.ring import check_units, encoded, most_of
from fedgate.models.federated.secure_aggregation.shamir import shares_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

COMMITMENT, TOKEN, SEALED, SHARES, MASKED = "commitment", "token", "sealed", "shares", "masked"  # of updates
VOUCHER = "voucher"  # of updates: by its own key, that the keys of the round are those of a gateway; zeros without one
PART, SIGNATURE = "part", "signature"  # of updates and of `global_state`
NO_PART, STAYS, LEAVES = range(3)  # what a gateway has in the running total: nothing that it is sure of, or something
# Of `global_state`, under the prefix.
ROUND, POSTED, PRESENT, LOST, CONFIRMED = "round", "posted", "present", "lost", "confirmed"
HANDED = "handed"  # of the cloud's `server_state`, under the prefix
SECRET, STAGE, PLACE, INPUT, WAS_COUNTED = (
    "secret",
    "stage",
    "place",
    "input",
    "counted",
)  # of `local_state`, under the prefix
# Of `local_state`, under the prefix: 1 where something of this gateway is in the cloud's running total, and by how much
# its last input changes that, which may not have been counted.
MEMBER, JOINS = "member", "joins"
STEPS = 5
KEYS_SENT, SHARES_SENT, INPUT_SENT, CONFIRMATION_SENT, REVEALED = range(STEPS)
BOX_BYTES = 2 * KEY_BYTES + TAG_BYTES  # a share of the seed and one of the key


class Gateway(NamedTuple):
    """The training of each of the five exchanges around one phase of the inner algorithm. `remembers` is that of the
    algorithm: the cloud keeps a running total of it, which gateways join and leave.
    """

    masking: Masking
    phase: Phase
    remembers: bool

    def keys(self, _global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        """Begin a round with new keys, whatever became of the one before."""
        inner, mine = split(local_state)
        secret = secret_of(data)
        keys = Keys.of(secret)
        update = {
            AGREEMENT: public_key(keys.agreement),
            CHANNEL: public_key(keys.channel),
            SIGNER: signing_key(keys.signer),
            COMMITMENT: derived(keys.seed, "commitment"),
            TOKEN: chained(keys.token, STEPS - 1),
        }
        text = vouched_text({name: bytes_of(update[name]) for name in PUBLIC_KEYS})
        update[VOUCHER] = vouched(data[IDENTITY].tobytes(), text) if IDENTITY in data else bytes(VOUCHER_BYTES)
        mine = {**_history(mine, data), SECRET: bytes_of(secret), STAGE: np.array(KEYS_SENT)}
        return {**inner, **prefixed(mine)}, {name: bytes_of(raw)[None] for name, raw in update.items()}

    def shares(self, global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        """Send every neighbour its shares of this gateway's two secrets, each under a key of its own.

        Raises `RosterError` where the members of the site are known and somebody in the roster is none.
        """
        (inner, mine), received = split(local_state), split(global_state)[1]
        if _stage(mine) != KEYS_SENT or SECRET not in mine:
            return local_state, {}
        roster, keys = Roster.of(received, self.masking), Keys.of(mine[SECRET].tobytes())
        found = np.flatnonzero((roster.agreement == bytes_of(public_key(keys.agreement))).all(axis=1))
        if len(found) == 0:  # its keys came too late, or were refused
            return local_state, {}
        _check_members(received, data)
        place, others = int(found[0]), roster.neighbours_of(int(found[0]))
        texts, channel = _share_texts(keys, roster, place, others), loaded(keys.channel)
        boxes = [
            sealed(agreed(channel, roster.channel[other].tobytes(), "share", roster.pair(place, other)), text)
            for other, text in zip(others, texts, strict=True)
        ]
        mine = {**mine, **{name: received[name] for name in PUBLIC_KEYS}, PLACE: np.array(place)}
        part = self._part(mine, data, counted=_was_counted(mine, received))
        mine[PART] = np.array(part)
        update = {SEALED: bytes_of(b"".join(boxes)).reshape(1, -1, BOX_BYTES), TOKEN: _token(keys, SHARES_SENT)}
        update[PART] = np.array([part], dtype=np.uint8)
        update[SIGNATURE] = bytes_of(signed(keys.signer, roster.here(part)))[None]
        return {**inner, **prefixed({**mine, STAGE: np.array(SHARES_SENT)})}, update

    def masked_input(
        self, global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator
    ) -> Trained:
        """Train, and send the inner update under masks. What is wrong with it is found here, as the cloud cannot.

        Who has nothing new sends nothing, so that a sum is one of news, and goes on helping to unmask it; who leaves
        waits where too few would be left, whose sum the cloud could then read.

        Raises `UpdateError` where the inner algorithm would refuse it, `RingError` for values that could make a sum
        wrap or would be lost in rounding, both before there is a mask.
        """
        (inner, mine), (model, received) = split(local_state), split(global_state)
        if _stage(mine) != SHARES_SENT or SECRET not in mine:
            return local_state, {}
        roster, place = Roster.of(mine, self.masking), int(mine[PLACE])
        if not _is_of(received, roster) or place not in (posted := _places(received, POSTED, roster)):
            return local_state, {}  # its shares came too late
        self._check_cover(roster, place, posted)
        _check_here(roster, posted, received)
        counted, is_in = np.array(_was_counted(mine, received)), _count(mine, MEMBER)
        is_in += _count(mine, JOINS) if counted else 0
        mine = {**mine, MEMBER: np.array(is_in), JOINS: np.array(0), POSTED: np.array(posted)}
        if is_in and weight_of(data) == 0.0 and not self._may_leave(mine, received):
            return {**inner, **prefixed(mine)}, {}
        after, update = self.phase.train(model, inner, {**data, COUNTED: counted}, rng)
        if not update:
            return {**after, **prefixed(mine)}, {}
        # Of an algorithm that sends changes: what the cloud has counted of this gateway.
        before = parted(after).get(BEFORE, {})
        admitted = self.phase.admit(Server(model, before), update)
        if not any(array.any() for array in admitted.values()):
            return {**after, **prefixed(mine)}, {}
        is_solved = self.phase.bears == "nothing"
        check_units(admitted, {**model, **before}, self.masking.quantum, each=is_solved)
        most = most_of(len(posted), self.masking.quantum, self.masking.range)
        vector = encoded(admitted, self.masking.quantum, most)
        keys, handed = Keys.of(mine[SECRET].tobytes()), digest_of(global_state)
        add_mask(vector, self_mask_key(keys.seed, roster, handed))
        agreement = loaded(keys.agreement)
        for other in sorted(set(roster.neighbours_of(place)) & set(posted)):
            add_mask(vector, mask_key(agreement, roster, place, other, handed), taken_off=other < place)
        joins = np.array(int(weight_of(data) > 0.0) - is_in if self.remembers else 0, dtype=np.int8)
        history = {INPUT: bytes_of(roster.digest), STAGE: np.array(INPUT_SENT), JOINS: joins}
        mine = {name: array for name, array in mine.items() if name != WAS_COUNTED} | history
        update = {MASKED: vector, TOKEN: _token(keys, INPUT_SENT)}
        return {**after, **prefixed(mine)}, update

    def confirm(self, global_state: Arrays, local_state: Arrays, _data: Arrays, _rng: np.random.Generator) -> Trained:
        """Sign whose inputs are said to be in the sum.

        Raises `RosterError` where so few are that their sum would tell of one.
        """
        (inner, mine), received = split(local_state), split(global_state)[1]
        if _stage(mine) not in (SHARES_SENT, INPUT_SENT) or SECRET not in mine:
            return local_state, {}
        roster, place, has_sent = Roster.of(mine, self.masking), int(mine[PLACE]), _stage(mine) == INPUT_SENT
        if not _is_of(received, roster) or POSTED not in mine:
            return local_state, {}
        present, posted = _places(received, PRESENT, roster), mine[POSTED].tolist()
        if has_sent and place not in present:
            # Its input came too late, or was left out: what is left for the cloud is the key, the seed stays hidden.
            return {**local_state, **prefixed({WAS_COUNTED: np.array(False)})}, {}
        able = set(posted) if has_sent else set(posted) - {place}
        self._check_survivors(roster, present, able)
        keys = Keys.of(mine[SECRET].tobytes())
        ended = {PRESENT: np.array(present), STAGE: np.array(CONFIRMATION_SENT)}
        signature = bytes_of(signed(keys.signer, roster.survivors(present)))[None]
        return {**inner, **prefixed({**mine, **ended})}, {SIGNATURE: signature, TOKEN: _token(keys, CONFIRMATION_SENT)}

    def reveal(self, global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        """Send one share of each neighbour: of the seed of its own mask if its input is here, else of its private key.

        Raises `RosterError` where fewer than the threshold of those who hold shares with it received the same.
        """
        (inner, mine), received = split(local_state), split(global_state)[1]
        if _stage(mine) != CONFIRMATION_SENT or SECRET not in mine:
            return local_state, {}
        roster, place = Roster.of(mine, self.masking), int(mine[PLACE])
        if not _is_of(received, roster) or place not in _places(received, CONFIRMED, roster):
            return local_state, {}  # its confirmation came too late
        posted, present = mine[POSTED].tolist(), mine[PRESENT].tolist()
        self._check_confirmed(roster, place, present, received)
        keys, boxes = Keys.of(mine[SECRET].tobytes()), received.get(SEALED)
        if boxes is None or boxes.shape != (len(posted), roster.holders.shape[1] - 1, BOX_BYTES):
            raise RosterError(f"{SEALED}: expected one row of boxes for each who sent shares, got {sorted(received)}")
        texts = _held(keys, roster, place, posted, boxes)
        shares = [text[:KEY_BYTES] if other in present else text[KEY_BYTES:] for other, text in texts.items()]
        rows = bytes_of(b"".join(shares)).reshape(1, -1, KEY_BYTES)
        ended = {**_history(mine, data), STAGE: np.array(REVEALED)}
        return {**inner, **prefixed(ended)}, {SHARES: rows, TOKEN: _token(keys, REVEALED)}

    def _check_survivors(self, roster: Roster, present: list[int], able: set[int]) -> None:
        fewest, smallest = self.masking.fewest, roster.smallest_group(present)
        if smallest < fewest or not able.issuperset(present):
            raise RosterError(
                f"present: expected at least {fewest} (masking.fewest) of those who sent shares and an input, joined "
                f"by masks with each other, got {len(present)}, {len(set(present) - able)} of them others, in groups "
                f"down to {smallest}"
            )

    def _part(self, mine: Arrays, data: Arrays, *, counted: bool) -> int:
        """Return what a gateway has in the running total, by which others tell whether they may leave it; `counted`:
        its last input is in there.
        """
        if not self.remembers or _count(mine, MEMBER) + (_count(mine, JOINS) if counted else 0) == 0:
            return NO_PART
        return LEAVES if weight_of(data) == 0.0 else STAYS

    def _may_leave(self, mine: Arrays, received: Arrays) -> bool:
        """Tell whether enough are left in the total by their own signed word, whoever else leaves with this gateway."""
        return int(mine[PART]) == LEAVES and int((received[PART] == STAYS).sum()) >= self.masking.fewest

    def _check_confirmed(self, roster: Roster, place: int, present: list[int], received: Arrays) -> None:
        confirmed = _places(received, CONFIRMED, roster)
        text, alike = roster.survivors(present), 0
        for other, signature in zip(confirmed, _signatures(received, len(confirmed)), strict=True):
            if other in roster.holders[place]:
                alike += is_signed(roster.signer[other].tobytes(), signature.tobytes(), text)
        if alike < roster.threshold:
            raise RosterError(
                f"{CONFIRMED}: expected {roster.threshold} of those who hold shares with this gateway to have signed "
                f"whose inputs are in the sum, got {alike}: they received otherwise, or have left"
            )

    def _check_cover(self, roster: Roster, place: int, posted: list[int]) -> None:
        """Refuse to send where too few others mask the same sum, or hold shares to unmask it."""
        holders, group = int(roster.held_by(posted)[place]), roster.group_of(place, posted)
        if len(group) < self.masking.fewest or holders < roster.threshold:
            raise RosterError(
                f"posted: expected shares of at least {self.masking.fewest} gateways (masking.fewest) joined by masks "
                f"with this one, {roster.threshold} of them holders of mine, got {len(group)} and {holders}"
            )


def _check_members(received: Arrays, data: Arrays) -> None:
    """See that everybody in a roster is a member of the site, each once, where the members are known."""
    if MEMBERS not in data:
        return
    members = {member.tobytes() for member in data[MEMBERS]}
    vouchers, count = received.get(VOUCHER), len(received[AGREEMENT])
    if vouchers is None or vouchers.shape != (count, VOUCHER_BYTES):
        raise RosterError(f"{VOUCHER}: expected {count} of {VOUCHER_BYTES} bytes, got {sorted(received)}")
    texts = [vouched_text({name: received[name][row] for name in PUBLIC_KEYS}) for row in range(count)]
    found = [voucher_of(voucher.tobytes(), text) for voucher, text in zip(vouchers, texts, strict=True)]
    if strangers := [member.hex() or "nobody's" for member in found if member not in members]:
        raise RosterError(
            f"roster: expected the {len(members)} members that the site's root key names, got {len(strangers)} others, "
            f"the first {strangers[0]}; 'cloud-aggregator keys members' names another"
        )
    if len(set(found)) < count:
        raise RosterError(f"roster: expected each member once, got {count - len(set(found))} of them again")


def _check_here(roster: Roster, posted: list[int], received: Arrays) -> None:
    """See that all who are said to go along do, with the part that they say: a roster may hold keys of a round that is
    long over.
    """
    parts = received.get(PART)
    if parts is None or parts.shape != (len(posted),) or parts.dtype != np.uint8:
        raise RosterError(f"{PART}: expected {len(posted)} of one byte, got {sorted(received)}")
    for other, part, signature in zip(posted, parts.tolist(), _signatures(received, len(posted)), strict=True):
        if not is_signed(roster.signer[other].tobytes(), signature.tobytes(), roster.here(part)):
            raise RosterError(f"{SIGNATURE}: expected one of this round of each who sent shares, got none of {other}")


def _signatures(received: Arrays, count: int) -> Array:
    signatures = received.get(SIGNATURE)
    if signatures is None or signatures.shape != (count, SIGNATURE_BYTES):
        raise RosterError(f"{SIGNATURE}: expected {count} of {SIGNATURE_BYTES} bytes, got {sorted(received)}")
    return signatures


def self_mask_key(seed: bytes, roster: Roster, handed: bytes) -> bytes:
    """Return the key of a gateway's own mask of what was handed out (`digest_of`)."""
    return derived(seed, "self mask", roster.digest + handed)


def mask_key(private: X25519PrivateKey, roster: Roster, place: int, other: int, handed: bytes) -> bytes:
    """Return the key of the mask that two places share of what was handed out (`digest_of`): the lower one adds it, the
    other takes it off.
    """
    context = roster.pair(min(place, other), max(place, other)) + handed
    return agreed(private, roster.agreement[other].tobytes(), "mask", context)


def _count(arrays: Arrays, name: str) -> int:
    return int(arrays.get(name, 0))


def _stage(mine: Arrays) -> int:
    return int(mine.get(STAGE, REVEALED))


def _is_of(received: Arrays, roster: Roster) -> bool:
    return ROUND in received and received[ROUND].tobytes() == roster.digest


def _places(received: Arrays, name: str, roster: Roster) -> list[int]:
    """Return places in rising order; raises `RosterError` for what are none."""
    found = [int(place) for place in np.ravel(received.get(name, np.zeros(0)))]
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
    member = {name: mine[name] for name in (MEMBER, JOINS) if name in mine}
    return member | {
        INPUT: mine[INPUT],
        WAS_COUNTED: np.asarray(mine.get(WAS_COUNTED, data.get(COUNTED, np.array(True)))),
    }


def _was_counted(mine: Arrays, received: Arrays) -> bool:
    """Tell whether this gateway's last input is in the model: it was counted, and its sum was unmasked."""
    if INPUT not in mine:
        return True
    is_lost = LOST in received and bool((received[LOST] == mine[INPUT]).all(axis=1).any())
    return bool(mine[WAS_COUNTED]) and not is_lost
