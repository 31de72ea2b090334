"""The commands on a pipeline file: `semel init`, `check`, `run` and `schema`."""

from __future__ import annotations

import contextlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import JsonOption
from semel.cli.output import plain, show_json
from semel.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semel.delivery import PipelineSpec
    from semel.pipeline import Pipeline, RunProgress, RunStanding

INIT_EPILOG = "Example: semel init && semel run pipeline.toml --once"
CHECK_EPILOG = (
    "Example: semel check charges.toml. Exit status 2 when the file is wrong; each line of the "
    "error begins with the file, the line and the column."
)
RUN_EPILOG = (
    "Example: semel run charges.toml. Exit status: 0 the input is delivered (--once) or the run "
    "was drained by SIGTERM or Ctrl-C; 1 the query failed; 2 the file is wrong, or the "
    "pipeline cannot start; 3 the ledger cannot be reached; 130 or 143 stopped at once "
    "by a second signal."
)
SCHEMA_EPILOG = "Example: semel schema > pipeline.schema.json"


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]")] = Path("pipeline.toml"),
    monitoring: Annotated[
        bool,
        typer.Option(
            "--monitoring",
            help="Write only the dashboard for Grafana and the alert rules for Prometheus, into "
            "the folder `monitoring` beside FILE.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented pipeline file that works as it is, and sample payments beside it.

    It delivers files of JSON to files of JSON, and needs no server. Nothing is overwritten.
    """
    if monitoring:
        from semel.monitoring import write_files

        written = write_files(file.parent / "monitoring")
    else:
        with _pydantic():
            from semel.pipeline import write_starter
        written = write_starter(file)
    if as_json:
        show_json([str(each) for each in written])
        return
    for each in written:
        print(f"wrote {plain(each)}")
    if not monitoring:
        print(f"next: semel run {plain(file)}")


def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a pipeline file, without starting Spark: every mistake with its line and column.

    The modules that it names are imported. Nothing is connected to, and nothing is written.
    """
    with _pydantic():
        from semel.pipeline import WrongPipelineFile
    try:
        with _looking(file):
            pipeline = _built(file)
    except WrongPipelineFile as error:
        if not as_json:
            raise
        problems = [each.to_json() for each in error.problems]
        show_json({"file": str(file), "ok": False, "problems": problems})
        raise typer.Exit(2) from None
    if as_json:
        show_json({"file": str(file), "ok": True, "problems": []})
    else:
        sinks = ", ".join(f"{each.name} ({each.capability.value})" for each in pipeline.sinks)
        print(f"{plain(file)} is valid: pipeline {plain(pipeline.name)}, to {plain(sinks)}")


def run(
    file: FileArgument,
    once: Annotated[
        bool, typer.Option("--once", help="Deliver the input that is there, and end.")
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format",
            help="How semel's log lines are written to standard error; `json` has a line for each "
            "minibatch in place of the progress line.",
        ),
    ] = LogFormat.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Run the pipeline of a file until it is stopped; start it again at any time.

    SIGTERM and Ctrl-C end it at the border of a window, with nothing in doubt; a second one ends it
    at once. While another run has the pipeline this one waits, and takes over when that one ends or
    its heartbeat stops; with --once it is refused.
    """
    with _pydantic():
        from semel.pipeline import run as run_it
    pipeline = _built(file)
    as_lines = log_format is LogFormat.JSON
    with _progress(silent=as_lines) as progress:
        ended, status = run_it(pipeline, progress, once=once, json_logs=as_lines)
    last = progress.last
    delivered = 0 if last is None else last.delivered
    if as_json:
        show_json(
            {
                "pipeline": pipeline.name,
                "ended": ended.value,
                "delivered": delivered,
                "in_doubt": None if last is None else last.in_doubt,
                "parked": None if last is None else last.parked,
            }
        )
    else:
        print(f"{plain(pipeline.name)}: {ended.value}, {delivered:,} delivered by this run")
    if status:
        raise typer.Exit(status)


def schema(as_json: JsonOption = True) -> None:
    """Print the JSON Schema of a pipeline file, for editors."""
    del as_json
    with _pydantic():
        from semel.pipeline import json_schema
    show_json(json_schema())


def is_file(subject: str) -> bool:
    """Return whether the subject of `semel explain` is a pipeline file."""
    return subject.endswith(".toml") or (":" not in subject and Path(subject).is_file())


def specification_of(file: Path) -> PipelineSpec:
    """Return the pipeline of a file, for `semel explain`; Spark is not started."""
    with _looking(file):
        return _built(file).specification()


def _built(file: Path) -> Pipeline:
    with _pydantic():
        from semel.pipeline import build, read_file
    with contextlib.redirect_stdout(sys.stderr):  # a module may print; the answer is ours alone
        return build(read_file(file))


@contextlib.contextmanager
def _looking(file: Path) -> Iterator[None]:
    """Let no module that the file names start a pipeline."""
    from semel.delivery import only_look

    only_look(f"`semel` inspects {str(file)!r}")
    yield


@contextlib.contextmanager
def _pydantic() -> Iterator[None]:
    """Name the extra if pydantic is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pydantic"):
            raise
        raise MissingExtra("pydantic is not installed: pip install 'semel[pipeline]'") from None


class _Kept:
    """Hands progress on, and keeps the last one."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self.last: RunStanding | None = None

    def show(self, standing: RunStanding) -> None:
        self.last = standing
        self._progress.show(standing)


@contextlib.contextmanager
def _progress(*, silent: bool) -> Iterator[_Kept]:
    """Show progress on standard error: one line that changes, or lines if it is not a terminal."""
    from semel.pipeline import Lines, Silent

    if silent:
        yield _Kept(Silent())
        return
    if not sys.stderr.isatty():
        yield _Kept(Lines(lambda line: print(plain(line), file=sys.stderr, flush=True)))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), refresh_per_second=4) as live:

        class OneLine:
            def show(self, standing: RunStanding) -> None:
                live.update(Text(plain(standing), no_wrap=True, overflow="ellipsis"))

        yield _Kept(OneLine())
