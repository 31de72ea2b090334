"""Every row of SYSTEMS.md that is promised is named by a test: `@pytest.mark.rows("S10", "A9")`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

ROWS = "S1-S21 A1-A22 O1-O24 N1-N12"

REQUIRED = """
    S2-S21
    A1-A2 A4-A20 A22
    O4-O19 O21-O24
    N1-N6 N8 N10-N12
"""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def expand(ranges: str) -> list[str]:
    """Give every row of `S2-S3 A4`, in order."""
    rows: list[str] = []
    for word in ranges.split():
        found = re.fullmatch(r"([SAON])(\d+)(?:-\1(\d+))?", word)
        assert found, f"not a row or a range of rows: {word}"
        letter, first, last = found.groups()
        rows += [f"{letter}{number}" for number in range(int(first), int(last or first) + 1)]
    return rows


def rows_named(text: str, filename: str = "<text>") -> Iterator[tuple[str, int]]:
    """Give each row that a test of this file names, and the line where."""
    tree = ast.parse(text, filename)
    for marks in marks_in(tree, is_test_module=Path(filename).name.startswith("test_")):
        for call in ast.walk(marks):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("mark.rows"):
                for argument in call.args:
                    where = f"{filename}:{argument.lineno}"
                    assert isinstance(argument, ast.Constant), f"{where}: write the row's name out"
                    yield str(argument.value), argument.lineno


def marks_in(tree: ast.Module, *, is_test_module: bool) -> Iterator[ast.expr]:
    """Give the decorators of tests, and what `pytestmark` is set to."""
    if is_test_module:
        yield from pytestmarks_in(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, Definition) and is_test(node):
            yield from node.decorator_list
            if isinstance(node, ast.ClassDef):
                yield from pytestmarks_in(node.body)


def pytestmarks_in(body: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    for node in body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        ):
            yield node.value


def is_test(node: Definition) -> bool:
    """A test function, or a class that has one: a mark on anything else shows nothing."""
    if isinstance(node, ast.ClassDef):
        return any(isinstance(inner, Definition) and is_test(inner) for inner in node.body)
    return node.name.startswith("test")


def missing(named: Iterable[str], required: str) -> list[str]:
    shown = set(named)
    return [row for row in expand(required) if row not in shown]


def unknown(named: Iterable[str]) -> list[str]:
    return sorted(set(named).difference(expand(ROWS)))


@pytest.fixture(scope="module")
def named() -> list[tuple[str, str]]:
    """Each row that a test names, and where."""
    return [
        (row, f"tests/{path.relative_to(TESTS).as_posix()}:{line}")
        for path in sorted(TESTS.rglob("*.py"))
        for row, line in rows_named(path.read_text("utf-8"), str(path))
    ]


def test_every_required_row_is_named_by_a_test(named: list[tuple[str, str]]) -> None:
    without = missing((row for row, _ in named), REQUIRED)
    assert not without, "no test names " + " ".join(without)


def test_every_named_row_exists(named: list[tuple[str, str]]) -> None:
    strangers = unknown(row for row, _ in named)
    where = [f"{place}: no row is called {row!r}" for row, place in named if row in strangers]
    assert not where, "\n" + "\n".join(where)


def test_every_required_row_exists() -> None:
    assert not unknown(expand(REQUIRED))


PLANTED = '''
import pytest
pytestmark = [pytest.mark.rows("S2"), pytest.mark.slow]

@pytest.mark.rows("A4", "A5")
def test_a(): ...

@pytest.mark.rows("O5")
class TestB:
    pytestmark = pytest.mark.rows("O6")

    @pytest.mark.rows("O7")
    async def test_c(self): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.rows("N2"))])
def test_d(x): ...

@pytest.mark.rows("S3")
def setup(): ...

@pytest.mark.rows("A6")
class Empty: ...

"""pytest.mark.rows("A7")"""
# pytest.mark.rows("A8")
'''


def test_rows_are_read_from_tests_and_from_nothing_else() -> None:
    rows = [row for row, _ in rows_named(PLANTED, "test_planted.py")]
    assert sorted(rows) == ["A4", "A5", "N2", "O5", "O6", "O7", "S2"]


def test_a_missing_row_is_found() -> None:
    rows = [row for row, _ in rows_named(PLANTED, "test_planted.py")]
    assert missing(rows, "S2-S3 A4-A7 O5-O7") == ["S3", "A6", "A7"]


def test_an_unknown_row_is_found() -> None:
    assert unknown(["S21", "S22", "A0", "O24", "X1", "N12"]) == ["A0", "S22", "X1"]


def test_a_row_that_is_not_written_out_is_refused() -> None:
    text = "@pytest.mark.rows(*ROWS)\ndef test_a(): ...\n"
    with pytest.raises(AssertionError, match="write the row's name out"):
        list(rows_named(text))
