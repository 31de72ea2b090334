"""Carries errors from tasks to the driver and from the driver to Spark.

Spark passes a Python exception on as text, which may contain text of a destination.

Always true:
- the semel error that a task failed with is on a line with the token of its action, which no
  destination knows: no other text is taken for one;
- an error given to Spark is short and does not contain `SEARCHED`: Spark's search for an
  interruption recurses for each character after it, and overflows its stack on a long text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from semel import errors
from semel.errors import SemelError, plain_text
from semel.events.encoding import ascii_json
from semel.spark.versions import is_cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TEXT_MAX = 2_000
"""The characters of an error that Spark and the user get; the log has all of it."""

HEAD_MAX = 500
WHY_MAX = 200

SEARCHED = "py4j.protocol.Py4JJavaError: An error occurred while calling"
"""The text that Spark's search for an interruption begins with (`StreamExecution.PROXY_ERROR`)."""

_UNSEARCHED = SEARCHED.removeprefix("py4j.protocol.")
_FRAME = re.compile(r"\s*(at \S|\.\.\. \d+ more)")
_STATE = re.compile(r"\s*(SQLSTATE: \w+\s*)+$")


class Stopped(Exception):
    """The query was stopped while its tasks ran. Spark recognises a normal stop by this text,
    PySpark 3.5 only with the line break where py4j puts it.
    """

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{SEARCHED} collect.\n: java.lang.InterruptedException ({plain_text(why, WHY_MAX)})"
        )


class Failed(Exception):
    """An error that is not semel's; its text is cut to the beginning and the end."""


def marked(error: SemelError, token: str) -> SemelError:
    """Return an error of a task with a line that only the driver reads.

    It is a new error if foreign text has to be escaped or cut.
    """
    text = plain_text(error, TEXT_MAX)
    kind = kind_of(error)
    made = error if text == str(error) else kind(text).with_traceback(error.__traceback__)
    made.add_note(f"[semel {token} {kind.__name__} {ascii_json(text)}]")
    return made


def raised(error: Exception, token: str) -> Exception:
    """Return the semel error that the tasks of an action failed with, or `Stopped` if the query was
    stopped; any other error unchanged.
    """
    stopped = _stopped(error)
    if stopped is not None:
        return stopped
    found = re.findall(rf'\[semel {token} (\w+) ("(?:[^"\\]|\\.)*")\]', str(error))
    if not found:
        return error
    name, text = found[-1]
    made: SemelError = getattr(errors, name)(json.loads(text))
    return made


def for_spark(error: Exception) -> Exception:
    """Return an error as Spark may get it: semel's own, or a short one."""
    if isinstance(error, Stopped):
        return error
    if not isinstance(error, SemelError):
        return _stopped(error) or _failed(error)
    text = _unsearched(plain_text(error, TEXT_MAX))
    return error if text == str(error) else kind_of(error)(text)


def last_sentence(text: str) -> str | None:
    """Find the semel error in Spark's text about a failed query; for another error, its last line.
    The result is only displayed: no decision depends on it.
    """
    report, _, _ = text.partition("\n=== Streaming Query ===")
    found = re.findall(rf"^(?:.*\s)?({re.escape(errors.__name__)}\.\w+: .+)$", report, re.MULTILINE)
    if found:
        return _STATE.sub("", found[-1])
    failed = report.rpartition(f"{Failed.__module__}.{Failed.__name__}: ")[2]
    lines = [_STATE.sub("", line).strip() for line in failed.splitlines()]
    return next((line for line in reversed(lines) if line), None) if failed != report else None


def kind_of(error: SemelError) -> type[SemelError]:
    """Return the class of `semel.errors` that an error is or derives from."""
    return next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)


def _stopped(error: BaseException) -> Stopped | None:
    """Return `Stopped` if an interruption or a cancelled job is the cause."""
    for cause in _causes(error):
        message = str(cause.getMessage())
        if "Interrupt" in cause.getClass().getName() or is_cancelled(message):
            return Stopped(f"{cause.getClass().getName()}: {message}")
    return None


def _causes(error: BaseException) -> Iterator[Any]:
    """Yield the Java exception and its causes."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        yield cause
        cause = cause.getCause()


def _failed(error: BaseException) -> Failed:
    """Shorten a foreign error; Java stack frames are left out."""
    text = f"{type(error).__name__}: {error}"
    lines = [line.rstrip() for line in text.splitlines() if not _FRAME.match(line)]
    shown = "\n".join(plain_text(line, TEXT_MAX) for line in lines if line)
    shown = _unsearched(shown)
    if len(shown) > TEXT_MAX:
        head, tail = shown[:HEAD_MAX], shown[HEAD_MAX - TEXT_MAX :]
        shown = f"{head}\n... (cut; the log has all of it) ...\n{tail}"
    return Failed(shown)


def _unsearched(text: str) -> str:
    return text.replace(SEARCHED, _UNSEARCHED)
