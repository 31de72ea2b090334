"""The command `semel explain`: the guarantee of a pipeline or a sink, in plain words."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from semel.cli.import_object import call, find
from semel.cli.output import JsonOption, show_json
from semel.guarantees import Explanation
from semel.guarantees import explain as explain_it

EPILOG = (
    "Example: semel explain payments:charge. MODULE is found as `python -m` would, the current "
    "directory first; OBJECT may be a sink, what semel.deliver gave, or a function without "
    "arguments that returns one of them."
)


def explain(
    subject: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Say what is promised: which row of the promise table applies and why, what may be in doubt,
    what makes two events the same, and what is not promised.
    """
    with contextlib.redirect_stdout(sys.stderr):  # what the module prints is not our answer
        found = find(subject)
        told: Explanation = call(subject, lambda: explain_it(found))
    if as_json:
        show_json(told.to_json())
    else:
        print(told)
