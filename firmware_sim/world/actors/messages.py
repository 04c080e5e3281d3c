"""Messages drawn from their own types: sound to whoever reads them, and as far from sense as their bounds allow.

What may stand in a field follows from the type's own schema, so a field that a later version adds is drawn too. What
the device has seen of the site is drawn as well: a digest that is asked for, a version in force, the name of a round.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from fedgate.config.protocol.messages import LARGEST, SENSORS_MAX, Message
from fedgate.firmware_sim.mutation import KINDS, NASTY, SCALE, VALUES, Edit, changed

SEEN_MAX = 200  # of each kind of value
LISTED = (0, 1, 2, 7, 60)  # how much a list holds, mostly
LONG = 0.02  # share of the lists that are as long as their type allows, one in a message at most
LONG_BYTES = 150_000  # of such a list: a message larger than the broker takes reaches nobody
NUMBERS = (0, 1, 2, 100, 10**6, 10**9, 10**12, 2**31, 2**32, 2**53, 2**62, LARGEST - 1, LARGEST)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-320, 1e30, -1e30, 1.7e308, 3.4e38, 2.0**63)
TEXTS = (
    *("", "x", "all", "cloud", ".", "-", "../../x", "anomaly", "identity-blocked", "disk-full", "first.", "9" * 30),
    *("x" * 64, "x" * 65, "x" * 256, "x" * 257, "x" * 4_096, "x" * 5_000, "9" * 5_000, "\N{SNOWMAN}" * 4_096),
    *("\0", "\n forged", "\x1b[2J\x1b[31m", "\u202e", "\u2028", '{"a":1}', "' OR 1=1 --", "%s%n"),
)  # fmt: skip
TRIES = 20  # at a text that fits


@dataclass
class Seen:
    """What a device has seen of its site, and of its own."""

    texts: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def note(self, value: object) -> None:
        """Take note of every text and number in a JSON value, the newest of each kind."""
        if isinstance(value, dict):
            for one in value.items():
                self.note(list(one))
        elif isinstance(value, list):
            for one in value[:SEEN_MAX]:
                self.note(one)
        elif isinstance(value, str) and value not in self.texts:
            self.texts = [*self.texts, value][-SEEN_MAX:]
        elif type(value) is int and value not in self.numbers:
            self.numbers = [*self.numbers, value][-SEEN_MAX:]


@cache
def _schema(kind: type[Message]) -> dict[str, Any]:
    return kind.model_json_schema()


def drawn(kind: type[Message], rng: np.random.Generator, seen: Seen) -> dict[str, Any]:
    """Return a message of a type, with few or many of the fields that it may leave out."""
    schema = _schema(kind)
    draw = _Draw(rng, seen, schema.get("$defs", {}), float(rng.choice([0.1, 0.5, 1.0])))
    return _make_whole(draw.table(schema))


def _make_whole(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose lists are as long as one another, where its own checks want that."""
    if trail := message.get("trail"):
        count = len(trail["offsets_s"])
        trail |= {"scores": [1.0] * count, "level_from": [0], "levels": [1.0]}
    if spectrum := message.get("spectrum"):
        kinds = ("worst", "healthy_5", "healthy_50", "healthy_95")
        spectrum |= {kind: [1.0] * (len(spectrum["edges_hz"]) - 1) for kind in kinds}
    if "differing_windows" in message:
        message["differing_windows"] = min(message["differing_windows"], message.get("compared_windows", 0))
    left = SENSORS_MAX
    for source in message.get("sources", {}).values():
        source["channels"] = source["channels"][:left]
        left -= len(source["channels"])
        count = len(source["channels"]) if "values" in source else 0
        source |= {"units": ["g"] * count, "values": [1.0] * count}
    return message


@dataclass
class _Draw:
    """One message that is being drawn."""

    rng: np.random.Generator
    seen: Seen
    named: dict[str, Any]  # types that the schema names
    share: float  # of the fields that may be left out
    is_long: bool = False  # a list in it is

    def value(self, schema: dict[str, Any]) -> Any:
        """Return a value that a schema takes."""
        if "$ref" in schema:
            return self.value(self.named[schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return self.value(self._one(schema["anyOf"]))
        if "enum" in schema:
            return self._one(schema["enum"])
        match schema.get("type"):
            case "object":
                return self.table(schema)
            case "array":
                return self._list(schema)
            case "string":
                return self.text(schema)
            case "integer":
                return self.number(schema)
            case "number":
                return self._one(
                    [one for one in FLOATS if schema.get("minimum", one) <= one <= schema.get("maximum", one)]
                )
            case "boolean":
                return bool(self.rng.random() < 0.5)
        return schema.get("const")

    def _one(self, values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def table(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return an object that a schema takes."""
        if "properties" in schema:
            needed = set(schema.get("required", ()))
            fields = schema["properties"].items()
            return {key: self.value(one) for key, one in fields if key in needed or self.rng.random() < self.share}
        ((pattern, inner),) = schema["patternProperties"].items()
        keys = {"pattern": pattern, "maxLength": schema["propertyNames"]["maxLength"]}
        if count := self._long(schema.get("maxProperties", 0)):
            one = self.value(inner)
            return dict.fromkeys(map(str, range(min(count, _room(one)))), one)
        return {self.text(keys): self.value(inner) for _ in range(self._one(LISTED))}

    def _list(self, schema: dict[str, Any]) -> list[Any]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", LISTED[-1])
        if count := self._long(most):
            one = self.value(schema["items"])
            return [one] * min(count, _room(one))
        return [self.value(schema["items"]) for _ in range(max(min(self._one(LISTED), most), least))]

    def _long(self, most: int) -> int:
        """Return how much a list holds that is as long as can be; 0 for another."""
        if self.is_long or self.rng.random() >= LONG:
            return 0
        self.is_long = True
        return most

    def number(self, schema: dict[str, Any]) -> int:
        """Return a whole number within its bounds: often at their edge, or beside one that was seen."""
        least, most = schema.get("minimum", -LARGEST), schema.get("maximum", LARGEST)
        for _ in range(TRIES):
            if self.seen.numbers and self.rng.random() < 0.4:
                number = self._one(self.seen.numbers) + int(self.rng.integers(-1, 2))
            else:
                number = self._one((*NUMBERS, least, least + 1, most - 1, most)) * self._one((1, 1, -1))
            if least <= number <= most:
                return int(number)
        return int(least)

    def text(self, schema: dict[str, Any]) -> str:
        """Return a text within its bounds: what was seen, what is long, what is hard to show."""
        for _ in range(TRIES):
            text = str(self._one(self.seen.texts if self.seen.texts and self.rng.random() < 0.5 else TEXTS))
            if _fits(text, schema):
                return text
        return self.rng.bytes(32).hex()


def _room(value: object) -> int:
    """Return how often a value finds room in a message."""
    return LONG_BYTES // (len(json.dumps(value)) + 10)


def _fits(text: str, schema: dict[str, Any]) -> bool:
    fits = len(text) <= schema.get("maxLength", len(text))
    return fits and ("pattern" not in schema or re.search(schema["pattern"], text) is not None)


def mutated(payload: bytes, rng: np.random.Generator) -> bytes:
    """Return a payload with one to three things in it changed: bytes, or whole values of JSON."""
    return changed(payload, [_edit(rng) for _ in range(int(rng.integers(1, 4)))])


def _edit(rng: np.random.Generator) -> Edit:
    where, amount = int(rng.integers(SCALE + 1)), int(rng.integers(41))
    if rng.random() < 0.5:
        return "token", where, 0, VALUES[int(rng.integers(len(VALUES)))]
    return KINDS[int(rng.integers(len(KINDS)))], where, amount, NASTY[int(rng.integers(len(NASTY)))]


def swollen(message: dict[str, Any], size: int, rng: np.random.Generator) -> bytes:
    """Return a message of about `size` bytes: one of its texts, at any depth, is as long as that takes."""
    places = list(_places(message))
    if not places:
        return json.dumps(message).encode()
    table, key = places[int(rng.integers(len(places)))]
    table[key] = ""
    table[key] = "x" * max(size - len(json.dumps(message)), 0)
    return json.dumps(message).encode()


def _places(table: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    found = [(table, key) for key, value in table.items() if isinstance(value, str)]
    return found + [place for value in table.values() if isinstance(value, dict) for place in _places(value)]
