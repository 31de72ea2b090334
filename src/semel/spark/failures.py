"""How the error of a task reaches the driver, and how an error of the driver reaches Spark.

Spark hands an exception of Python on as text, in which a destination's own words may stand.

Always true:
- which error of semel a task failed with is written on a line with the token of its action, which
  no destination knows: no other text is ever taken for one;
- what Spark gets is short, and free of the words that Spark's search for an interruption begins
  with: that search recurses for each character after them, and overflows its stack on a long text.

What the log says at the end of a minibatch: what was not sent, and why.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from typing import TYPE_CHECKING

from semel import errors
from semel.errors import SemelError, plain_text
from semel.spark.versions import is_cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from semel.spark.task import Outcome

TEXT_MAX = 2_000
"""How many characters of an error Spark and the user get; the log has all of it."""

HEAD_MAX = 500
WHY_MAX = 200

SEARCHED = "py4j.protocol.Py4JJavaError: An error occurred while calling"
"""The words Spark's search for an interruption begins with (`StreamExecution.PROXY_ERROR`)."""

_UNSEARCHED = SEARCHED.removeprefix("py4j.protocol.")
_FRAME = re.compile(r"\s*(at \S|\.\.\. \d+ more)")
_STATE = re.compile(r"\s*(SQLSTATE: \w+\s*)+$")


class Stopped(Exception):
    """The query was stopped while its tasks ran; Spark knows that end by these words, and PySpark
    3.5 only with the end of a line among them, where py4j has it.
    """

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{SEARCHED} collect.\n: java.lang.InterruptedException ({plain_text(why, WHY_MAX)})"
        )


class Failed(Exception):
    """Something else than semel failed; the beginning and the end of what was said about it."""


def marked(error: SemelError, token: str) -> SemelError:
    """Give an error of a task as it is raised to Spark: with a line that only the driver reads.

    It is another one where foreign text has to be escaped or cut.
    """
    text = plain_text(error, TEXT_MAX)
    kind = kind_of(error)
    made = error if text == str(error) else kind(text).with_traceback(error.__traceback__)
    made.add_note(f"[semel {token} {kind.__name__} {json.dumps(text)}]")
    return made


def raised(error: Exception, token: str) -> Exception:
    """Give the error of semel that the tasks of an action failed with, or the end that was asked
    for; any other error as it is.
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
    """Give an error of the driver's part as it may leave it: semel's own, or a short one."""
    if isinstance(error, Stopped):
        return error
    if not isinstance(error, SemelError):
        return _stopped(error) or _failed(error)
    text = _unsearched(plain_text(error, TEXT_MAX))
    return error if text == str(error) else kind_of(error)(text)


def last_sentence(text: str) -> str | None:
    """Find in what Spark says of a failed query the error of semel's that it failed with; of
    another one the last line of it. It is only shown: nothing is decided by it.
    """
    told, _, _ = text.partition("\n=== Streaming Query ===")
    found = re.findall(rf"^(?:.*\s)?({re.escape(errors.__name__)}\.\w+: .+)$", told, re.MULTILINE)
    if found:
        return _STATE.sub("", found[-1])
    failed = told.rpartition(f"{Failed.__module__}.{Failed.__name__}: ")[2]
    lines = [_STATE.sub("", line).strip() for line in failed.splitlines()]
    return next((line for line in reversed(lines) if line), None) if failed != told else None


def kind_of(error: SemelError) -> type[SemelError]:
    """The error of this project that an error is, or is derived from."""
    return next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)


def _stopped(error: BaseException) -> Stopped | None:
    """Say that the query was stopped, where an interruption or its job's end is the cause."""
    for cause in _causes(error):
        said = str(cause.getMessage())
        if "Interrupt" in cause.getClass().getName() or is_cancelled(said):
            return Stopped(f"{cause.getClass().getName()}: {said}")
    return None


def _causes(error: BaseException) -> Iterator[Any]:
    """What Java threw, and why."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        yield cause
        cause = cause.getCause()


def _failed(error: BaseException) -> Failed:
    """Cut what somebody else said; frames of Java are left out."""
    said = f"{type(error).__name__}: {error}"
    lines = [line.rstrip() for line in said.splitlines() if not _FRAME.match(line)]
    shown = "\n".join(plain_text(line, TEXT_MAX) for line in lines if line)
    shown = _unsearched(shown)
    if len(shown) > TEXT_MAX:
        head, tail = shown[:HEAD_MAX], shown[HEAD_MAX - TEXT_MAX :]
        shown = f"{head}\n... (cut; the log has all of it) ...\n{tail}"
    return Failed(shown)


def _unsearched(text: str) -> str:
    return text.replace(SEARCHED, _UNSEARCHED)


log = logging.getLogger("semel")

_TEXTS = {
    "skipped": "not sent, because handled (delivered, parked or dropped) {before}",
    "suppressed": "not sent again, because delivered by an attempt before",
    "parked_before": "not sent again and not delivered, because parked by an attempt before "
    "(`semel parked ls` shows them)",
    "dropped_before": "not sent again, because dropped in doubt by an attempt before "
    "(on_doubt='skip')",
    "doubted": "parked in doubt (`semel parked ls` shows them)",
    "others": "parked for another reason, or behind one that is (`semel parked ls`)",
    "dropped": "in doubt and dropped (on_doubt='skip'): they may not have arrived",
}


def tell(place: str, outcome: Outcome, *, judged: bool = False) -> None:
    """Warn of events that were not sent because they had been, and of those that wait."""
    told: Counter[str] = Counter(skipped=outcome.skipped)
    for report in outcome.reports:
        for name in ("skipped", "suppressed", "parked_before", "dropped_before", "dropped"):
            told[name] += getattr(report, name)
        told["doubted"] += report.doubted
        told["others"] += report.parked - report.doubted
    before = "before a person judged" if judged else "before the checkpoint was lost"
    for name, text in _TEXTS.items():
        if told[name]:
            log.warning("%s: events %s: %d", place, text.format(before=before), told[name])
