"""What a run of pytest showed: each test that names rows, and whether it ran and passed.

Always true:
- a test shows its rows when set-up, call and tear-down passed, and it checks something;
- one that is skipped, deselected, expected to fail, in error or empty shows nothing;
- a run of all tests in which a required row is not shown fails; a run of a part does not.

Tests run in processes of xdist too: what a test names travels in the properties of its reports.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from support import rows

PROPERTY = "rows"
CHECKS = {"raises", "warns", "fail", "deprecated_call"}
DEPTH = 5
"""So many calls deep a check is looked for."""


class RowsPlugin:
    """Records what became of tests that name rows, and judges a whole run."""

    def __init__(self, config: pytest.Config, required: str = rows.REQUIRED) -> None:
        self._config = config
        self._required = required
        self._tests: dict[str, list[str]] = {}
        self._outcomes: dict[str, str] = {}
        self._missing: list[str] = []
        self._is_worker = hasattr(config, "workerinput")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Write what each test names where its reports carry it."""
        for item in items:
            names = [name for mark in item.iter_markers("rows") for name in mark.args]
            if names:
                told = {"rows": names, "empty": is_empty(item)}
                item.user_properties.append((PROPERTY, json.dumps(told)))

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        """Remember what was left out, for the list of what is not shown."""
        for item in items:
            for name, told in item.user_properties:
                if name == PROPERTY:
                    self._note(item.nodeid, json.loads(str(told))["rows"], "deselected")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a process of xdist left out."""
        for test, names in getattr(node, "workeroutput", {}).get(PROPERTY, {}).items():
            self._note(test, names, "deselected")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one phase of one test."""
        for name, told in report.user_properties:
            if name == PROPERTY and not self._is_worker:
                said = json.loads(str(told))
                self._note(report.nodeid, said["rows"], outcome(report, empty=said["empty"]))

    def _note(self, test: str, names: list[str], result: str | None) -> None:
        """Keep what became of a test; once it is not passed, a later phase changes nothing."""
        self._tests[test] = names
        before = self._outcomes.get(test)
        if result is not None and before in (None, "passed"):
            self._outcomes[test] = result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the record, and let a whole run fail that did not show every required row."""
        if self._is_worker:
            self._config.workeroutput[PROPERTY] = self._tests  # type: ignore[attr-defined]
            return
        whole = is_whole(session)
        tests = [
            (test, names, self._outcomes.get(test, "did not run"))
            for test, names in sorted(self._tests.items())
        ]
        if whole or tests:
            self._write(whole, tests)
        if whole or self._config.getoption("require_rows"):
            self._missing = rows.not_shown(rows.judge(tests), self._required)
        if self._missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write(self, whole: bool, tests: list[tuple[str, list[str], str]]) -> None:
        file = rows.files(self._config.rootpath)[0 if whole else 1]
        file.parent.mkdir(exist_ok=True)
        run = {
            "whole": whole,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "arguments": list(self._config.invocation_params.args),
            "tests": [{"test": t, "rows": names, "outcome": o} for t, names, o in tests],
        }
        file.write_text(json.dumps(run, indent=1), "utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """List what was not shown."""
        if self._missing:
            terminalreporter.section("rows not shown", red=True)
            for line in self._missing:
                terminalreporter.line(line, red=True)


def add_option(parser: pytest.Parser) -> None:
    """Add `--require-rows`."""
    parser.addoption(
        "--require-rows",
        action="store_true",
        help="fail when a required row is not shown, also where only a part of the tests is run",
    )


def outcome(report: pytest.TestReport, *, empty: bool) -> str | None:
    """Say what one phase means for its test: `passed`, why it shows nothing, or nothing yet."""
    if hasattr(report, "wasxfail"):
        return "expected to fail"
    if report.outcome != "passed":
        return report.outcome if report.when == "call" else f"{report.outcome} in {report.when}"
    if report.when == "call":
        return "checks nothing" if empty else "passed"
    return None


def is_whole(session: pytest.Session) -> bool:
    """Whether every test was asked for, and the run was not broken off."""
    config, option = session.config, session.config.option
    chosen = ("keyword", "markexpr", "lf", "deselect", "ignore", "ignore_glob", "stepwise")
    if any(getattr(option, name, None) for name in (*chosen, "collectonly")):
        return False
    if session.shouldstop or session.shouldfail:
        return False
    if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return False
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return config.args_source is pytest.Config.ArgsSource.TESTPATHS or (
            config.invocation_params.dir == config.rootpath
        )
    asked = {(config.invocation_params.dir / each).resolve() for each in config.args}
    every = {(config.rootpath / each).resolve() for each in config.getini("testpaths") or ["."]}
    return config.rootpath.resolve() in asked or every <= asked


def is_empty(item: pytest.Item) -> bool:
    """Whether a test checks nothing: no assertion, expected error or failure, here or in what it
    calls. What cannot be read counts as a check.
    """
    function = getattr(item, "obj", None)
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    function = inspect.unwrap(getattr(function, "__func__", function)) if function else None
    return isinstance(function, FunctionType) and not checks(function)


def checks(function: FunctionType, depth: int = DEPTH) -> bool:
    """Whether a function has a check, or calls one that has."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return True
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        if isinstance(node, ast.Call) and _calls_a_check(node, function, depth):
            return True
    return False


def _calls_a_check(call: ast.Call, function: FunctionType, depth: int) -> bool:
    name = ast.unparse(call.func)
    if name.rpartition(".")[2] in CHECKS:
        return True
    if depth == 0:
        return False
    called = _found(name, function)
    return any(checks(each, depth - 1) for each in _functions_of(called))


def _found(name: str, function: FunctionType) -> Any:
    """Give what a dotted name means in a function's module, None where it is a local one."""
    first, *others = name.split(".")
    found = function.__globals__.get(first)
    for each in others:
        found = getattr(found, each, None)
    return found


def _functions_of(called: Any) -> Iterator[FunctionType]:
    """Give what runs when it is called: a function, or the methods of a class of the tests."""
    called = inspect.unwrap(called) if callable(called) else None
    if isinstance(called, FunctionType) and _is_ours(called):
        yield called
    elif inspect.isclass(called) and _is_ours(called):
        yield from (each for each in vars(called).values() if isinstance(each, FunctionType))


def _is_ours(called: Any) -> bool:
    """Whether it belongs to the tests: an error that semel or a library raises is not a check."""
    module = sys.modules.get(called.__module__)
    file = Path(getattr(module, "__file__", None) or "site-packages")
    top = called.__module__.partition(".")[0]
    return top not in {"semel", *sys.stdlib_module_names} and "site-packages" not in file.parts
