"""A user's program passes `mypy --strict`, and an editor sees every setting."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args

import semel
from semel.protocol import DoubtWord, OnDoubt, OnReject, RejectWord
from semel.sinks import Function, Retry

ROOT = Path(__file__).parents[1]

FINE = """
import semel
from semel.sinks import Files, Function, Http, Kafka, OnDoubt, OnReject, Postgres, Redis, Retry


@semel.sink
def bare(event: semel.Event) -> None:
    print(event.entity, event.id, event.value["amount"])


@semel.sink(window=1, on_doubt="stop", on_reject="block", name="charge", retry=Retry(for_s=3))
def charge(event: semel.Event) -> None:
    raise semel.Rejected("no")


def arrived(event: semel.Event) -> bool | None:
    return None


@semel.sink(on_doubt=arrived, lease_s=5.0, deadline_s=10.0, park_limit=5)
def asked(event: semel.Event) -> None: ...


@semel.sink(batches=True, window=100, on_doubt=OnDoubt.SKIP, on_reject=OnReject.PARK)
def many(batch: object) -> None: ...


made: list[Function] = [bare, charge, asked, many]
held = semel.sink(on_doubt="hold")(arrived)
resent = semel.sink(on_doubt="resend")(arrived)
skipped = semel.sink(on_doubt="skip")(arrived)
pay = Http(name="pay", url="https://bank.example", on_doubt="stop", on_reject="block")
asking = Http(name="pay", url="https://bank.example", on_doubt=arrived)
lake = Files(name="lake", url="/lake", on_doubt="hold")
bank = Postgres(name="bank", url="postgresql://h/d", table="t", on_reject="park")
topic = Kafka(name="topic", servers="h:1", topic="t", on_doubt="resend")
sums = Redis(name="sums", url="redis://h", command="DEL", key="{c}", on_doubt=OnDoubt.STOP)
stops: bool = pay.on_doubt is OnDoubt.STOP
"""

WRONG = {
    'semel.sink(on_doubt="stopp")': "No overload variant",
    "semel.sink(wndow=1)": "wndow",
    'semel.sink(on_reject="drop")': "No overload variant",
    "semel.sink(lambda: None)": "Callable[[Event], object]",
    'Http(name="a", url="https://b", on_doubt="never")': "never",
    'Http(name="a", url="https://b", window="1")': "window",
    'Http(name="a")': "url",
}


def checked(folder: Path, program: str) -> tuple[int, str]:
    """Run mypy on a program, with our own settings (strict) and what `make check` left in the
    cache: else it takes half a minute.
    """
    (folder / "program.py").write_text(program)
    settings = ["--config-file", str(ROOT / "pyproject.toml")]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *settings, *cache, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_program_with_every_policy_passes_mypy_strict_and_mistakes_do_not(
    tmp_path: Path,
) -> None:
    wrong = "".join(f"{line}\n" for line in WRONG)
    _, said = checked(tmp_path, FINE + wrong)
    first = FINE.count("\n") + 1
    errors: dict[int, str] = {}
    for line in said.splitlines():
        place, found, text = line.partition(": error: ")
        if found:
            number = int(place.rpartition(":")[2])
            errors[number] = errors.get(number, "") + text
    assert [line for line in errors if line < first] == [], said
    assert list(errors) == list(range(first, first + len(WRONG))), said
    for (line, text), error in zip(WRONG.items(), errors.values(), strict=True):
        assert text in error, (line, error)


def test_the_words_of_the_policies_are_those_of_the_protocol() -> None:
    assert set(get_args(DoubtWord)) == {each.value for each in OnDoubt}
    assert set(get_args(RejectWord)) == {each.value for each in OnReject}


def test_the_decorator_shows_its_settings_with_the_defaults_of_the_sink() -> None:
    shown = inspect.signature(semel.sink).parameters
    assert list(shown) == [
        "function",
        "window",
        "on_doubt",
        "on_reject",
        "batches",
        "name",
        "lease_s",
        "deadline_s",
        "retry",
        "park_limit",
        "probe",
    ]
    assert {each.kind for each in list(shown.values())[1:]} == {inspect.Parameter.KEYWORD_ONLY}
    of_sink = {each.name: each for each in fields(Function)}
    for name in ("window", "on_doubt", "on_reject", "batches", "lease_s", "deadline_s", "probe"):
        assert shown[name].default == of_sink[name].default
        assert shown[name].default is not MISSING
    made = semel.sink(print)
    assert (made.retry, made.park_limit) == (Retry(), 10_000)
    for kind in (semel.sinks.Http, semel.sinks.Files):
        assert {"url", "on_doubt", "retry"} <= set(inspect.signature(kind).parameters)
