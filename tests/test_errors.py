"""The error tree is the one its docstring draws, and every error survives the way to the driver."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Iterator

import pytest

from semel import errors
from semel.errors import NotDelivered, SemelError, plain_text
from semel.ledger.keys import make_key
from semel.ledger.store.commit import Conflict
from semel.ledger.verbs.parked import HeadMoved

BRANCH = re.compile(r"^(?P<indent>[│ ]*)(?:[├└]── )?(?P<name>[A-Z]\w+)(?:  +(?P<says>.+))?$")


def drawn() -> dict[str, str | None]:
    """Give each error of the drawing with the one it hangs under."""
    assert errors.__doc__ is not None
    drawing = errors.__doc__.split("```")[1].strip("\n")
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in drawing.splitlines():
        found = BRANCH.match(line)
        assert found, f"not a branch of the tree: {line!r}"
        depth = 0 if "── " not in line else len(found["indent"]) // 4 + 1
        path[depth:] = [found["name"]]
        parents[found["name"]] = path[depth - 1] if depth else None
    return parents


def below(error: type[SemelError]) -> Iterator[type[SemelError]]:
    yield error
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from below(child)


TREE = list(below(SemelError))


def test_the_tree_is_the_one_that_is_drawn() -> None:
    built = {each.__name__: each.__base__.__name__ for each in TREE if each.__base__}
    assert {**built, "SemelError": None} == drawn()


def test_every_error_of_the_module_hangs_in_the_tree() -> None:
    defined = {
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if each.__module__ == errors.__name__
    }
    assert defined == set(TREE)


@pytest.mark.parametrize("error", TREE)
def test_every_error_says_in_a_docstring_what_it_means(error: type[SemelError]) -> None:
    assert error.__doc__


@pytest.mark.parametrize("error", TREE)
def test_every_error_survives_pickling(error: type[SemelError]) -> None:
    before = error("pipeline 'pay': event 7 of 'a'")
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is error
    assert str(after) == "pipeline 'pay': event 7 of 'a'"
    assert after.args == before.args


def test_not_delivered_keeps_when_to_try_again() -> None:
    after = pickle.loads(pickle.dumps(NotDelivered("busy", retry_after_s=2.5)))
    assert (str(after), after.retry_after_s) == ("busy", 2.5)
    assert NotDelivered().retry_after_s is None


def test_what_never_leaves_its_room_survives_pickling_too() -> None:
    conflict = pickle.loads(pickle.dumps(Conflict(make_key("open", "pay"))))
    assert conflict.key == make_key("open", "pay")
    assert "open:pay" in str(conflict)
    assert type(pickle.loads(pickle.dumps(HeadMoved()))) is HeadMoved


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("card declined", "card declined"),
        ("Zürich, 東京", "Zürich, 東京"),
        ("one\r\ntwo\tthree", "one\\r\\ntwo\\tthree"),
        ("\x1b[31mred\x00\x7f\x9b", "\\x1b[31mred\\x00\\x7f\\x9b"),
        ("a\u2028b\u202ec\ud800d", "a\\u2028b\\u202ec\\ud800d"),
        (b"caf\xc3\xa9 \xff\n", "café \\xff\\n"),
        (ValueError("one\ntwo"), "one\\ntwo"),
    ],
)
def test_foreign_text_stands_in_an_error_on_one_line_and_escaped(
    foreign: object, shown: str
) -> None:
    assert plain_text(foreign) == shown


@pytest.mark.parametrize("foreign", ["x" * 10_000, b"x" * 10_000, "\n" * 10_000, "é" * 10_000])
@pytest.mark.parametrize("limit", [0, 2, 3, 4, 100])
def test_foreign_text_is_cut_to_the_limit_after_it_was_escaped(
    foreign: str | bytes, limit: int
) -> None:
    shown = plain_text(foreign, limit)
    assert len(shown) == limit
    assert shown.endswith("..."[:limit])


def test_foreign_text_that_fits_exactly_is_not_cut() -> None:
    assert plain_text("x" * 100, 100) == "x" * 100
    assert plain_text("x" * 101, 100) == "x" * 97 + "..."
