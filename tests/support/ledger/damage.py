"""Damages rows of a ledger in ways that disks, people and other programs do."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

FOREIGN: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "x",
    [],
    [[]],
    [1, "a"],
    {},
    {"a": 1},
    {"packed": "x"},
    {"z": "eJw="},
    {"$decimal": "x"},
)


def bit_flip(text: str, random: Random) -> str:
    """Flip one bit of one character; broken UTF-8 is shown as a store shows it."""
    content = bytearray(text.encode())
    place = random.randrange(len(content) * 8)
    content[place // 8] ^= 1 << (place % 8)
    return content.decode(errors="surrogateescape")


def truncation(text: str, random: Random) -> str:
    return text[: random.randrange(len(text))]


def removed_field(text: str, random: Random) -> str:
    def change(holder: Any, name: Any) -> None:
        del holder[name]

    return _changed(text, random, change)


def other_type(text: str, random: Random) -> str:
    def change(holder: Any, name: Any) -> None:
        holder[name] = random.choice(FOREIGN)

    return _changed(text, random, change)


def foreign_json(text: str, random: Random) -> str:
    del text
    return json.dumps(random.choice(FOREIGN))


def not_a_number(text: str, random: Random) -> str:
    def change(holder: Any, name: Any) -> None:
        holder[name] = random.choice([float("nan"), float("inf")])

    return _changed(text, random, change)


WAYS: tuple[Callable[[str, Random], str], ...] = (
    bit_flip,
    truncation,
    removed_field,
    other_type,
    other_type,
    foreign_json,
    not_a_number,
)


def _changed(text: str, random: Random, change: Callable[[Any, Any], None]) -> str:
    """Change one place of a JSON document, however deep."""
    value = json.loads(text)
    places = list(_places(value))
    if not places:
        return "{}"
    change(*random.choice(places))
    return json.dumps(value, separators=(",", ":"))


def _places(value: Any) -> Any:
    names = list(value) if isinstance(value, dict) else range(len(value))
    for name in names:
        yield value, name
        if isinstance(value[name], dict | list):
            yield from _places(value[name])
