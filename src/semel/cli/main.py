"""The command `semel`: every command is a function here or in a file beside it.

Always true:
- answers go to standard output, progress goes to standard error;
- an error is one line on standard error, without a traceback;
- the exit status is 0 on success, 1 when a check found a problem, 2 for a wrong command, file,
  ledger, pipeline or event, 3 when the ledger cannot be reached.
"""

from __future__ import annotations

import contextlib
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from semel import __version__
from semel.cli import (
    chaos,
    console,
    demo,
    inbox,
    ingest,
    ledger,
    parked,
    pipeline_file,
    simulate,
    status,
    stopped_pipeline,
    verify,
)
from semel.cli.options import JsonOption, LedgerOption
from semel.cli.output import plain, show_json, show_table
from semel.errors import LedgerUnavailable, SemelError

EPILOG = (
    "Exit status: 0 success; 1 a check found a problem, or `ledger find` found nothing; 2 a wrong "
    "command, file, ledger, pipeline or event; 3 the ledger cannot be reached. Commands that read "
    "a ledger take --ledger URL or $SEMEL_LEDGER, and --json. Example: semel status --ledger "
    "sqlite:///charges.db"
)
EXPLAIN_EPILOG = (
    "Example: semel explain charges.toml, or semel explain payments:charge. MODULE is found as "
    "`python -m` finds it, the current directory first; OBJECT may be a sink, the result of "
    "semel.deliver, or a function without arguments that returns one of them."
)
DOCTOR_EPILOG = (
    "Example: semel doctor --ledger sqlite:///charges.db. "
    "Exit status 1 when something that is required is missing."
)

HELP = {
    "init": "Write a pipeline file that works as it is.",
    "check": "Find what is wrong with a pipeline file.",
    "run": "Run the pipeline of a file.",
    "schema": "The JSON Schema of a pipeline file.",
    "demo": "Kill real Spark half-way, with semel and without.",
    "status": "Which run has each pipeline, how far it is, what is parked.",
    "ingest": "Take events over HTTP into an inbox, each once.",
    "console": "Show pipelines and parked events in a browser.",
    "resolve": "Decide about an event in doubt or a dead letter.",
    "stop": "Stop a running pipeline where nothing is in doubt.",
    "rescale": "Spread entities over another number of partitions.",
    "reset": "Let a stopped pipeline begin elsewhere in its input.",
    "rename": "Let a stopped pipeline continue under another name.",
    "forget": "Remove a stopped pipeline from the ledger.",
    "explain": "The guarantee of a pipeline or a sink, in plain words.",
    "doctor": "Check this machine; what is missing, and what to install.",
    "simulate": "The real protocol in thousands of simulated worlds.",
    "chaos": "A Spark cluster and real servers under many faults.",
    "verify-sink": "Crash a sink at every step to prove its capability.",
    "verify-store": "Check that a store does what every store must do.",
}
"""One line for each command in the list of commands."""


def _make_app(*, completion: bool = False) -> typer.Typer:
    """Return an empty app; with `completion`, one whose commands a shell completes."""
    return typer.Typer(
        name="semel",
        help="Exactly-once delivery from Spark Structured Streaming.",
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog=EPILOG,
    )


app = _make_app(completion=True)


def explain(
    subject: Annotated[str, typer.Argument(metavar="FILE|MODULE:OBJECT", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Print the guarantee of a pipeline file, a pipeline or a sink: which row of the promise table
    applies and why, what may be in doubt, what makes two events the same, and what is not promised.
    """
    from semel.cli.options import call_object, find_object
    from semel.guarantees import explain as explain_it

    if pipeline_file.is_file(subject):
        explained = explain_it(pipeline_file.specification_of(Path(subject)))
    else:
        with contextlib.redirect_stdout(sys.stderr):  # the module may print; the answer is ours
            found = find_object(subject)
            explained = call_object(subject, lambda: explain_it(found))
    if as_json:
        show_json(explained.to_json())
    else:
        print(explained)


def doctor(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Check Java, Spark, Python, the extras, the ledger, the clock and the disk.

    Nothing is written, and no server but the ledger's is called. Each finding is ok, missing,
    warning or unknown, with what to do.
    """
    from semel.operate import Health, diagnose

    found = diagnose(ledger)
    if as_json:
        show_json([each.to_json() for each in found])
    else:
        rows = [(each.what, each.found, each.health.value, each.do) for each in found]
        show_table(("what", "found", "state", "what to do"), rows)
    if any(each.health is Health.MISSING for each in found):
        raise typer.Exit(1)


app.command("init", short_help=HELP["init"], epilog=pipeline_file.INIT_EPILOG)(pipeline_file.init)
app.command("check", short_help=HELP["check"], epilog=pipeline_file.CHECK_EPILOG)(
    pipeline_file.check
)
app.command("run", short_help=HELP["run"], epilog=pipeline_file.RUN_EPILOG)(pipeline_file.run)
app.command("schema", short_help=HELP["schema"], epilog=pipeline_file.SCHEMA_EPILOG)(
    pipeline_file.schema
)
app.command("demo", short_help=HELP["demo"], epilog=demo.EPILOG)(demo.demo)
app.command("status", short_help=HELP["status"], epilog=status.EPILOG)(status.status)
app.command("ingest", short_help=HELP["ingest"], epilog=ingest.EPILOG)(ingest.ingest)
app.command("console", short_help=HELP["console"], epilog=console.EPILOG)(console.console)
app.add_typer(parked.app, name="parked")
app.command("resolve", short_help=HELP["resolve"], epilog=parked.RESOLVE_EPILOG)(parked.resolve)
app.command("stop", short_help=HELP["stop"], epilog=stopped_pipeline.STOP_EPILOG)(
    stopped_pipeline.stop
)
app.command("rescale", short_help=HELP["rescale"], epilog=stopped_pipeline.RESCALE_EPILOG)(
    stopped_pipeline.rescale
)
app.command("reset", short_help=HELP["reset"], epilog=stopped_pipeline.RESET_EPILOG)(
    stopped_pipeline.reset
)
app.command("rename", short_help=HELP["rename"], epilog=stopped_pipeline.RENAME_EPILOG)(
    stopped_pipeline.rename
)
app.command("forget", short_help=HELP["forget"], epilog=stopped_pipeline.FORGET_EPILOG)(
    stopped_pipeline.forget
)
app.add_typer(ledger.app, name="ledger")
app.add_typer(inbox.app, name="inbox")
app.command("explain", short_help=HELP["explain"], epilog=EXPLAIN_EPILOG)(explain)
app.command("doctor", short_help=HELP["doctor"], epilog=DOCTOR_EPILOG)(doctor)
app.command("simulate", short_help=HELP["simulate"], epilog=simulate.EPILOG)(simulate.simulate)
app.command("chaos", short_help=HELP["chaos"], epilog=chaos.EPILOG)(chaos.chaos)
app.command("verify-sink", short_help=HELP["verify-sink"], epilog=verify.SINK_EPILOG)(
    verify.verify_sink
)
app.command("verify-store", short_help=HELP["verify-store"], epilog=verify.STORE_EPILOG)(
    verify.verify_store
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"semel {__version__}")
        raise typer.Exit


@app.callback()
def _semel(
    shown: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Exactly-once delivery from Spark Structured Streaming."""
    del shown


_USAGE: type[Exception] = typer.BadParameter.__mro__[1]
"""The error of a wrong option or argument; its place differs between versions of typer."""


_UNREACHABLE = 3

_INTERRUPTED = 130
"""The exit status after Ctrl-C; some versions of typer return it, others raise."""


def _app_for(arguments: list[str]) -> typer.Typer:
    """Return the app with only the command that is called: typer inspects every command it has,
    which takes longer than `semel status`. Without a known command, return the whole app.
    """
    name = arguments[0] if arguments else None
    small = _make_app()
    small.registered_callback = app.registered_callback
    small.registered_commands = [each for each in app.registered_commands if each.name == name]
    small.registered_groups = [each for each in app.registered_groups if each.name == name]
    return small if small.registered_commands or small.registered_groups else app


def _print_error(error: Exception) -> None:
    """Print an error as one line; each problem of a pipeline file on a line of its own."""
    for line in getattr(error, "lines", None) or (str(error),):
        print(f"semel: {plain(' '.join(line.split()))}", file=sys.stderr)


def main() -> None:
    """Run `semel`; the entry point of the package."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # terminals with few characters show escapes
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _app_for(sys.argv[1:])(standalone_mode=False, prog_name="semel")
        if status == _INTERRUPTED:
            raise typer.Abort
    except _USAGE as error:
        message = getattr(error, "format_message", error.__str__)()
        context = getattr(error, "ctx", None)
        path = "semel" if context is None else context.command_path
        one_line = f"semel: {message.removesuffix('.')}; see {path} --help"
        print(message if "\n" in message else one_line, file=sys.stderr)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        print("semel: stopped", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except LedgerUnavailable as error:
        _print_error(error)
        sys.exit(_UNREACHABLE)
    except (SemelError, OSError) as error:
        _print_error(error)
        sys.exit(getattr(error, "exit_status", 2))
    sys.exit(status if isinstance(status, int) else 0)
