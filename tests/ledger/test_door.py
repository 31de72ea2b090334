"""The door of the ledger has every name that other rooms use, and they use no other way in."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel import ledger
from semel.ledger import store

SRC = Path(__file__).parents[2] / "src"

DOORS = {"semel.ledger", "semel.ledger.store"}
OTHER_WAYS = {
    "semel.ledger.store.libpq",  # connecting to PostgreSQL, which the sink does in the same way
    "semel.ledger.store.sqlite",  # the contract suite of sinks opens a file by its path
    "semel.ledger.store.sqlite_file",  # commands look for a file without creating it
}


def ways_around(text: str) -> Iterator[str]:
    """The modules behind the door that a file imports from."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("semel.ledger"):
            if node.module not in DOORS | OTHER_WAYS:
                yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("semel.ledger."))


def test_every_name_of_the_door_is_there() -> None:
    for room in (ledger, store):
        assert len(set(room.__all__)) == len(room.__all__)
        assert all(getattr(room, name) is not None for name in room.__all__)
        assert set(room.__all__) <= set(dir(room))
    with pytest.raises(AttributeError, match=r"'semel\.ledger' has no attribute 'nothing'"):
        _ = ledger.nothing


def test_other_rooms_come_through_the_door() -> None:
    found = {
        f"{path.relative_to(SRC)}: {module}"
        for path in SRC.glob("semel/**/*.py")
        if path.relative_to(SRC).parts[1] not in ("ledger", "bench")
        for module in ways_around(path.read_text())
    }
    assert found == set()


@pytest.mark.parametrize(
    "text", ["from semel.ledger.rows import OpenRow", "import semel.ledger.keys as keys"]
)
def test_a_way_around_the_door_is_found(text: str) -> None:
    assert len(list(ways_around(text))) == 1


def test_the_door_loads_nothing_before_it_is_asked() -> None:
    script = "import sys, semel.ledger; print('pyarrow' in sys.modules, 'sqlite3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.split() == [b"False", b"False"]
