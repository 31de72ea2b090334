"""The last id of each scope is that of the last run that has one, and its text that of JSON."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from semel.events import Given, Latest, Rows, sort
from semel.events.encoding.canonical_json import canonical
from semel.events.ids.max_ids import RUNS_MAX

NAMES = ["a", "b", 'quo"te', "back\\slash", "line\nend", "nul\0", "naïve", "𐍈", "", "~\x7f"]


def draw(kind: str, number: int) -> Any:
    """An id that rises with its number."""
    texts = {
        "integer": number - 3,
        "text": f'{number:04d}"\n',
        "tuple": (number // 3, f"{number}é"),
    }
    return texts[kind]


def run(pairs: list[tuple[str, Any]]) -> Rows:
    ids = [each if isinstance(each, tuple) else (each,) for _, each in pairs]
    parts = {f"id{at}": [each[at] for each in ids] for at in range(len(ids[0]))}
    identity = Given("who", tuple(parts), increasing=True)
    batch = pa.record_batch({"who": [name for name, _ in pairs], **parts})
    return identity.stamper("0").stamp(sort(batch, identity))


@pytest.mark.parametrize("kind", ["integer", "text", "tuple"])
@pytest.mark.parametrize("runs", [1, 2, RUNS_MAX, 2 * RUNS_MAX + 3])
def test_the_last_run_that_has_a_scope_tells_its_last_id(kind: str, runs: int) -> None:
    dice, number = random.Random(runs), 0
    latest = Latest()
    expected: dict[str, Any] = {}
    for _ in range(runs):
        pairs = []
        for _ in range(dice.randrange(1, 30)):
            number += 1
            pairs.append((dice.choice(NAMES), draw(kind, number)))
        rows = run(pairs)
        latest.add(rows)
        expected |= rows.last_ids()
    assert latest.ids() == expected
    plain = {
        name: [list(last) if isinstance(last, tuple) else last, 7]
        for name, last in expected.items()
    }
    assert latest.written(7).content == canonical(plain).encode()
    assert json.loads(latest.written(7).content) == plain


def test_of_nothing_there_is_no_last_id() -> None:
    latest = Latest()
    latest.add(run([("a", 1)]).slice(0, 0))
    assert not latest
    assert latest.ids() == {}


@pytest.mark.parametrize(
    ("ids", "after", "told"),
    [([3, 4], 2, True), ([3, 4], 3, False), ([-5], -6, True), (["3"], 2, False)],
)
def test_only_integers_are_all_after_an_integer(ids: list[Any], after: int, told: bool) -> None:
    assert run([("a", each) for each in ids]).all_after(after) is told
