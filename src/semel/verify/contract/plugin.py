"""The pytest plugin: subclass `SinkContract` in one's tests, and each case becomes a test.

It loads in every run of pytest where semel is installed, so it imports nothing of semel before a
subclass is found.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

NOTE = "semel"
"""The property of a report that carries what a person should read although the test passed."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from semel.sinks import Sink
    from semel.verify.contract.forkserver import ForkServer
    from semel.verify.contract.suite import Result, Suite


class SinkContract:
    """Tests of one sink: `class TestMine(SinkContract)`, with `sink` and `arrived`.

    Attributes:
        sink: the sink, as an attribute or a property of the class, or as a fixture of this name.
        entity, event: the columns of the identity, where `rows` gives them other names.
        cases: the names of the cases that are played, where not all are.
        seed: what is random comes from it.
        settles_s: how long the destination may still work on a call whose caller was killed.
    """

    sink: Any = None
    entity: ClassVar[str] = "customer"
    event: ClassVar[str] = "payment_id"
    cases: ClassVar[tuple[str, ...] | None] = None
    seed: ClassVar[int] = 7
    settles_s: ClassVar[float] = 0.2
    rows: ClassVar[Callable[[Any, pa.Table], pa.Table] | None] = None

    def arrived(self) -> Iterable[tuple[object, object]]:
        """Give the effects that happened, in the order of arrival, as (entity, event id)."""
        raise NotImplementedError("arrived() gives the effects that happened")

    def test_the_sink_keeps_its_promise(
        self, semel_case: str, semel_fork_server: ForkServer, request: pytest.FixtureRequest
    ) -> None:
        """Play one case of the contract."""
        __tracebackhide__ = True
        result = _played(self, semel_case, semel_fork_server, request)
        if result.earned.value == "does not apply":
            _note(request, f"{result.case} does not apply: {result.findings[0].what[0]}")
        elif result.earned.value != "earned":
            pytest.fail(_describe(result), pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each case."""
    if metafunc.cls is None or not issubclass(metafunc.cls, SinkContract):
        return
    if "semel_case" not in metafunc.fixturenames:
        return
    from semel.sinks import Sink
    from semel.verify.contract.cases import CASES

    sink = inspect.getattr_static(metafunc.cls, "sink")
    known = [case.name for case in CASES if not isinstance(sink, Sink) or case.applies(sink)]
    wanted = metafunc.cls.cases
    metafunc.parametrize("semel_case", known if wanted is None else wanted)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the cases that have nothing to show for a sink, and why: they are not left out."""
    notes = [
        f"{report.nodeid.rpartition('::')[0]}: {text}"
        for report in terminalreporter.getreports("passed")
        for name, text in report.user_properties
        if name == NOTE
    ]
    if notes:
        terminalreporter.section("the contract of sinks: what does not apply")
        for note in notes:
            terminalreporter.write_line(note)


def _note(request: pytest.FixtureRequest, text: str) -> None:
    """Keep a word for the report and for the end of the run, also across processes."""
    request.node.user_properties.append((NOTE, text))
    request.node.add_report_section("call", "the contract of sinks", text)


@pytest.fixture(scope="session")
def semel_fork_server() -> Iterator[ForkServer]:
    """The process from which the processes of all suites are forked."""
    from semel.verify.contract.forkserver import ForkServer

    with ForkServer() as fork_server:
        yield fork_server


_suites: dict[type[SinkContract], Suite] = {}


def _played(
    contract: SinkContract, name: str, fork_server: ForkServer, request: pytest.FixtureRequest
) -> Result:
    """Play a case; what is known of the sink stays known for the next one of its class."""
    from semel.sinks import Sink
    from semel.verify.contract.cases import CASES
    from semel.verify.contract.rows import Maker
    from semel.verify.contract.suite import Subject, Suite

    found = contract.sink
    sink: Sink = found if isinstance(found, Sink) else request.getfixturevalue("sink")
    case = next(case for case in CASES if case.name == name)
    maker = Maker(contract.entity, contract.event, contract.rows)
    subject = Subject(type(contract).__name__, sink, contract.arrived, maker, contract.settles_s)
    suite = _suites.get(type(contract))
    if suite is None or suite.subject.sink != sink:
        suite = _suites[type(contract)] = Suite(subject, fork_server, contract.seed)
    suite.subject = subject
    return suite.run(case)


def _describe(result: Result) -> str:
    """Tell what was found, with the story of each play."""
    lines = [f"{result.case}: {result.says}: {result.earned.value}"]
    for finding in result.findings:
        lines += [finding.play, *(f"  {text}" for text in finding.what)]
        lines += [f"    {text}" for text in finding.story]
    return "\n".join(lines)
