"""Every row of the source systems that is promised is shown: a test that names it,
`@pytest.mark.rows("S10", "A9")`, ran and passed. Planted runs prove that nothing else counts.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from support import rows
from support.rows import REQUIRED, ROWS, expand

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parent

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


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
    return sorted(set(named).difference(ROWS))


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
    found = [row for row, _ in rows_named(PLANTED, "test_planted.py")]
    assert sorted(found) == ["A4", "A5", "N2", "O5", "O6", "O7", "S2"]


def test_a_missing_row_is_found() -> None:
    found = [row for row, _ in rows_named(PLANTED, "test_planted.py")]
    assert missing(found, "S2-S3 A4-A7 O5-O7") == ["S3", "A6", "A7"]


def test_an_unknown_row_is_found() -> None:
    assert unknown(["S21", "S23", "A0", "O24", "X1", "N12"]) == ["A0", "S23", "X1"]


def test_a_row_that_is_not_written_out_is_refused() -> None:
    text = "@pytest.mark.rows(*ROWS)\ndef test_a(): ...\n"
    with pytest.raises(AssertionError, match="write the row's name out"):
        list(rows_named(text))


CONFTEST = """
import pytest
from support import rows_plugin

def pytest_addoption(parser):
    rows_plugin.add_option(parser)

def pytest_configure(config):
    config.addinivalue_line("markers", "rows(*names): the rows")
    config.pluginmanager.register(rows_plugin.RowsPlugin(config, required="S2-S3"), "rows")
"""

SHOWN = """
import pytest

@pytest.mark.rows("S2")
def test_that_shows():
    assert [1]
"""

DESELECTS = """

def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if "that_names" in item.name]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
"""

NAMED = """
import pytest

def helper(value): return value
def check(value): assert value
"""

NOT_SHOWN = {
    "skipped": ("@pytest.mark.skip", "assert [1]", "skipped in setup"),
    "skipped_by_its_body": ("", "pytest.skip('no server'); assert [1]", "skipped"),
    "expected_to_fail": ("@pytest.mark.xfail(strict=False)", "assert []", "expected to fail"),
    "xpassing": ("@pytest.mark.xfail(strict=False)", "assert [1]", "expected to fail"),
    "failing": ("", "assert []", "failed"),
    "in_error": ("@pytest.mark.usefixtures('broken')", "assert [1]", "failed in setup"),
    "in_error_at_its_end": ("@pytest.mark.usefixtures('late')", "assert [1]", "failed in teardown"),
    "an_ellipsis": ("", "...", "checks nothing"),
    "a_docstring": ("", "'It holds.'", "checks nothing"),
    "without_a_check": ("", "helper([1])", "checks nothing"),
    "asserting_a_constant": ("", "assert True", "checks nothing"),
}
"""What a test looks like that shows nothing, and why it does not."""


@pytest.fixture
def planted(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with one test that shows S2, and two rows, S2 and S3, that are required."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\ntestpaths = tests")
    broken = """
@pytest.fixture
def broken(): raise RuntimeError

@pytest.fixture
def late():
    yield
    raise RuntimeError
"""
    tests = pytester.mkdir("tests")
    (tests / "conftest.py").write_text(CONFTEST + broken)
    (tests / "test_shown.py").write_text(SHOWN)
    return pytester


def plant(planted: pytest.Pytester, decorator: str, body: str) -> None:
    test = f'{NAMED}\n@pytest.mark.rows("S3")\n{decorator}\ndef test_that_names():\n    {body}\n'
    (planted.path / "tests" / "test_planted.py").write_text(test)


def require(planted: pytest.Pytester, required: str) -> None:
    conftest = planted.path / "tests" / "conftest.py"
    conftest.write_text(conftest.read_text().replace("S2-S3", required))


def recorded(planted: pytest.Pytester) -> dict[str, str]:
    run = json.loads((planted.path / "build" / "rows.json").read_text())
    return {each["test"]: each["outcome"] for each in run["tests"]}


def test_a_row_whose_only_test_did_not_pass_or_checks_nothing_is_not_shown(
    planted: pytest.Pytester,
) -> None:
    tests = [
        f'@pytest.mark.rows("A{number}")\n{decorator}\ndef test_{case}():\n    {body}\n'
        for number, (case, (decorator, body, _)) in enumerate(NOT_SHOWN.items(), start=1)
    ]
    (planted.path / "tests" / "test_planted.py").write_text("\n".join([NAMED, *tests]))
    require(planted, f"S2 A1-A{len(NOT_SHOWN)}")
    result = planted.runpytest()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    told = [line for line in result.outlines if "not shown: " in line]
    assert told == [
        f"A{number} not shown: tests/test_planted.py::test_{case} ({why})"
        for number, (case, (_, _, why)) in enumerate(NOT_SHOWN.items(), start=1)
    ]
    assert recorded(planted) == {
        "tests/test_shown.py::test_that_shows": "passed",
        **{f"tests/test_planted.py::test_{case}": why for case, (*_, why) in NOT_SHOWN.items()},
    }


@pytest.mark.parametrize("case", ["skipped", "expected_to_fail", "an_ellipsis"])
def test_a_run_without_a_failure_fails_for_a_row_that_is_not_shown(
    planted: pytest.Pytester, case: str
) -> None:
    plant(planted, *NOT_SHOWN[case][:2])
    result = planted.runpytest()
    assert result.parseoutcomes().get("failed", 0) == 0
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["S3 not shown: tests/test_planted.py::test_that_names (*)"])


def test_a_run_in_which_every_row_is_shown_passes(planted: pytest.Pytester) -> None:
    plant(planted, "", "check([1])\n    with pytest.raises(KeyError): {}[1]")
    result = planted.runpytest()
    assert result.ret == pytest.ExitCode.OK
    assert set(recorded(planted).values()) == {"passed"}


def test_a_row_whose_only_test_is_deselected_by_the_suite_itself_fails_the_run(
    planted: pytest.Pytester,
) -> None:
    plant(planted, "", "assert [1]")
    conftest = planted.path / "tests" / "conftest.py"
    conftest.write_text(conftest.read_text() + DESELECTS)
    result = planted.runpytest()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    named = "tests/test_planted.py::test_that_names"
    result.stdout.fnmatch_lines([f"S3 not shown: {named} (deselected)"])


def test_a_row_that_no_test_names_fails_the_run(planted: pytest.Pytester) -> None:
    result = planted.runpytest()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["S3 not shown: no test that names it ran"])


PARTS = (
    ("-k", "that_shows"),
    ("-m", "not rows"),
    ("tests/test_shown.py",),
    ("--deselect", "tests/test_planted.py"),
    ("--ignore", "tests/test_planted.py"),
    ("--collect-only",),
)


@pytest.mark.parametrize("part", PARTS, ids=" ".join)
def test_a_part_of_the_tests_does_not_fail_for_the_rows_of_the_others(
    planted: pytest.Pytester, part: tuple[str, ...]
) -> None:
    plant(planted, "", "assert [1]")
    result = planted.runpytest(*part)
    assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    result.stdout.no_fnmatch_line("*not shown*")
    assert not (planted.path / "build" / "rows.json").exists()


@pytest.mark.parametrize("part", PARTS[:3], ids=" ".join)
def test_a_part_fails_where_every_row_is_asked_for(
    planted: pytest.Pytester, part: tuple[str, ...]
) -> None:
    plant(planted, "", "assert [1]")
    result = planted.runpytest("--require-rows", *part)
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["S3 not shown: *"])


def test_all_tests_named_by_their_folder_are_a_whole_run(planted: pytest.Pytester) -> None:
    plant(planted, "@pytest.mark.skip", "assert [1]")
    assert planted.runpytest("tests").ret == pytest.ExitCode.TESTS_FAILED
    assert planted.runpytest(str(planted.path)).ret == pytest.ExitCode.TESTS_FAILED


def test_processes_of_xdist_show_what_one_process_shows(
    planted: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = '@pytest.mark.rows("S3")\n@pytest.mark.skip\ndef test_skipped(): assert [1]\n\n'
    left_out = '@pytest.mark.rows("S4")\ndef test_that_names(): assert [1]\n'
    (planted.path / "tests" / "test_planted.py").write_text(NAMED + skipped + left_out)
    conftest = planted.path / "tests" / "conftest.py"
    conftest.write_text(conftest.read_text() + DESELECTS)
    require(planted, "S2-S4")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (TESTS, TESTS.parent / "src"))))
    result = planted.runpytest_subprocess("-p", "xdist", "-n", "2", "--dist", "loadgroup")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert recorded(planted) == {
        "tests/test_planted.py::test_skipped": "skipped in setup",
        "tests/test_planted.py::test_that_names": "deselected",
        "tests/test_shown.py::test_that_shows": "passed",
    }


def run_of(*tests: tuple[str, list[str], str]) -> dict[str, object]:
    return {
        "whole": True,
        "at": "2026-01-31T12:00:00+00:00",
        "arguments": [],
        "tests": [{"test": test, "rows": names, "outcome": out} for test, names, out in tests],
    }


@pytest.fixture
def last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "build").mkdir()
    run = run_of(("a", ["S2"], "passed"), ("b", ["S3", "S2"], "skipped"), ("c", ["O20"], "passed"))
    rows.files(tmp_path)[0].write_text(json.dumps(run))
    monkeypatch.setattr(rows, "ROOT", tmp_path)
    monkeypatch.setattr(rows, "REQUIRED", "S2-S21 A1-A2 A4-A20 A22 O4-O19 O21-O24 N1-N6 N8 N10-N12")


@pytest.mark.usefixtures("last_run")
def test_make_rows_prints_every_row_with_the_tests_that_showed_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert rows.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "last run of the whole suite, 2026-01-31T12:00:00+00:00"
    titles = [line for line in lines[1:] if not line.startswith(" ")]
    assert [line.split()[0] for line in titles] == expand("S1-S22 A1-A22 O1-O24 N1-N12")
    states = {line.split()[0]: line.rpartition(": ")[2] for line in titles}
    later = {name for name, state in states.items() if state == "not shown, not yet required"}
    assert later == set(expand("S1 S22 A3 A21 O1-O3 N7 N9"))
    assert states["S2"] == "shown"
    assert {states[name] for name in states if name not in {*later, "S2", "O20"}} == {"not shown"}
    assert states["O20"] == "shown, not yet required"
    assert lines[lines.index(next(x for x in titles if x.startswith("S2 "))) + 1].strip() == "a"


@pytest.mark.usefixtures("last_run")
def test_rows_are_printed_as_json_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert rows.main(["--json", "--check"]) == 1
    told = {each["row"]: each for each in json.loads(capsys.readouterr().out)["rows"]}
    assert list(told) == list(ROWS)
    assert told["S2"]["shown_by"] == ["a"]
    assert told["S3"] | {"title": ""} == {
        "row": "S3",
        "title": "",
        "state": "not shown",
        "required": True,
        "shown_by": [],
        "others": {"b": "skipped"},
    }
