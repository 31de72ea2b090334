"""The pytest plugin: the suite `SinkContract`, and the fixture `semel_pipeline`.

Subclass `SinkContract` in your tests, and each case becomes a test.
It loads in every run of pytest where semel is installed, so it imports nothing of semel until a
subclass is found or the fixture is used.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

NOTE = "semel"
"""The property of a report with a note to print although the test passed."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from semel.sinks import Sink
    from semel.testing import PipelineUnderTest
    from semel.verify.contract.forkserver import ForkServer
    from semel.verify.contract.suite import CaseResult, Suite


class SinkContract:
    """Tests of one sink: `class TestMine(SinkContract)`, with `sink` and `arrived`.

    Attributes:
        sink: the sink, as an attribute or a property of the class, or as a fixture of this name.
        entity, event: the columns of the identity, if `rows` renames them.
        cases: the names of the cases to run; all by default.
        seed: the seed of everything random.
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
        """Return the effects that happened, in the order of arrival, as (entity, event id)."""
        raise NotImplementedError("define arrived(): it returns the effects that happened")

    def test_the_sink_keeps_its_promise(
        self, semel_case: str, semel_fork_server: ForkServer, request: pytest.FixtureRequest
    ) -> None:
        """Run one case of the contract."""
        __tracebackhide__ = True
        result = _played(self, semel_case, semel_fork_server, request)
        if result.earned.value == "does not apply":
            _note(request, f"{result.case} does not apply: {result.findings[0].what[0]}")
        elif result.earned.value != "earned":
            pytest.fail(_describe(result), pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a test for each case."""
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
    """Print the cases that do not apply to a sink, with the reason."""
    notes = [
        f"{report.nodeid.rpartition('::')[0]}: {text}"
        for report in terminalreporter.getreports("passed")
        for name, text in report.user_properties
        if name == NOTE
    ]
    if notes:
        terminalreporter.section("sink contract: cases that do not apply")
        for note in notes:
            terminalreporter.write_line(note)


def _note(request: pytest.FixtureRequest, text: str) -> None:
    """Keep a note for the report and the summary, also across processes."""
    request.node.user_properties.append((NOTE, text))
    request.node.add_report_section("call", "sink contract", text)


@pytest.fixture
def semel_pipeline(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., PipelineUnderTest]]:
    """Return a function that makes a pipeline under test; it takes a sink, and the parameters of
    `semel.testing.PipelineUnderTest`.
    """
    from semel.testing import PipelineUnderTest

    made: list[PipelineUnderTest] = []

    def make(to: Any, **parameters: Any) -> PipelineUnderTest:
        ledger = tmp_path_factory.mktemp("semel") / "ledger.db"
        made.append(PipelineUnderTest(to, ledger, **parameters))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def semel_fork_server() -> Iterator[ForkServer]:
    """Start the process that forks the processes of all suites."""
    from semel.verify.contract.forkserver import ForkServer

    with ForkServer() as fork_server:
        yield fork_server


_suites: dict[type[SinkContract], Suite] = {}


def _played(
    contract: SinkContract, name: str, fork_server: ForkServer, request: pytest.FixtureRequest
) -> CaseResult:
    """Run a case; the suite of a class is kept for its next case."""
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


def _describe(result: CaseResult) -> str:
    """Return the findings, with the story of each scenario."""
    lines = [f"{result.case}: {result.says}: {result.earned.value}"]
    for finding in result.findings:
        lines += [finding.play, *(f"  {text}" for text in finding.what)]
        lines += [f"    {text}" for text in finding.story]
    return "\n".join(lines)
