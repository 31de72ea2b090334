"""A second run of a pipeline waits, and takes over when the first one ends, dies or freezes."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from semel.ledger import Ledger, LedgerClient, resolve_parked
from semel.protocol import ParkedState
from semel.verify.process_group import ProcessGroup, state_of
from semel.verify.servers.proxy import TcpProxy
from support.spark.driver_scripts import Run, wait_for
from support.spark.pipeline_place import SLOW_CHARGES, TIMEOUT_S, PipelinePlace
from support.spark.reconcile import seed

TAKE_OVERS = 50 if os.environ.get("SEMEL_SOAK") else 3
"""How many runs are killed one after the other."""

ROWS = 40
IN_POSTGRES = SLOW_CHARGES.replace('"sqlite:///charges.db"', '"${LEDGER}"')
OPEN = [state for state in ParkedState if not state.final]
ENDED = re.compile(r"attempt (\d+)\.\d+ ended between intent and settle")
IN_A_RESEND = "the previous sender ended without recording an outcome"
WAITS = "this start waits, and takes over when that run ends"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[PipelinePlace]:
    with ProcessGroup("standby") as group:
        made = PipelinePlace(tmp_path, group, variables={"SLOW_S": "0.05"}, customers=40)
        made.more_payments(ROWS)
        yield made


def runs_of(place: PipelinePlace) -> int:
    with Ledger(place.ledger) as ledger:
        return ledger.summary("charges").run or 0


def all_gone(pids: list[int]) -> bool:
    return {state_of(pid) for pid in pids} <= {"", "Z"}


def is_complete(place: PipelinePlace) -> bool:
    with Ledger(place.ledger) as ledger:
        return bool(ledger.summary("charges").complete)


def standby(place: PipelinePlace, file: Path) -> Run:
    """Start another run, and wait until it stands by."""
    run = place.start("run", str(file))
    wait_for(lambda: WAITS in run.said(), run, TIMEOUT_S)
    return run


def delivers(place: PipelinePlace, run: Run) -> None:
    """Feed a run, and wait until it is in the middle of that."""
    before = len(place.charged())
    place.more_payments(ROWS)
    wait_for(lambda: len(place.charged()) > before + 3, run, TIMEOUT_S)


def continues(place: PipelinePlace, run: Run) -> float:
    """Wait until a run delivers something new; return how long that took."""
    began = time.monotonic()
    place.more_payments(ROWS)
    wait_for(lambda: place.has_charged(run), run, TIMEOUT_S)
    return time.monotonic() - began


def finish(place: PipelinePlace, run: Run) -> set[object]:
    """Let a run deliver the rest, nothing repeated and nothing lost; return what is in doubt."""
    wait_for(lambda: len(settled(place)) >= place.fed, run, TIMEOUT_S + place.fed)
    run.kill(signal.SIGTERM)
    run.finished(TIMEOUT_S)
    charged, held = place.charged(), in_doubt(place)
    assert [each for each, count in Counter(charged).items() if count > 1] == []
    assert {*charged, *parked(place)} == {*range(place.fed)}, "lost"
    assert charged_out_of_order(place) == []
    return held


def charged_out_of_order(place: PipelinePlace) -> list[int]:
    """The events that were charged after a later one of their customer."""
    last: dict[str, int] = {}
    late = []
    for each in place.charged():
        customer = place.customer(each)
        if each < last.get(customer, -1):
            late.append(each)
        last[customer] = each
    return late


def judge(place: PipelinePlace) -> list[str]:
    """Decide each event in doubt as a person does who looks at the destination; return the run in
    which each of them was put in doubt, or that it was while it was sent once more.
    """
    charged = {*place.charged()}
    runs: list[str] = []
    with Ledger(place.ledger) as ledger:
        client = LedgerClient(ledger.store, "charges")
        held = ledger.parked("charges", "charge")
        for key, row in [each for each in held if each[1].state is ParkedState.HELD]:
            arrived = row.event in charged
            decision = ParkedState.DELIVERED if arrived else ParkedState.RESEND
            resolve_parked(client, "charge", key, decision, "witness", "it was counted")
            runs += [IN_A_RESEND] if row.why == IN_A_RESEND else ENDED.findall(row.why)
    return runs


def settled(place: PipelinePlace) -> set[object]:
    return {*place.charged(), *parked(place)}


def parked(place: PipelinePlace, *states: ParkedState) -> set[object]:
    with Ledger(place.ledger) as ledger:
        rows = [row for _, row in ledger.parked("charges", "charge")]
    return {row.event for row in rows if not states or row.state in states}


def in_doubt(place: PipelinePlace) -> set[object]:
    return parked(place, ParkedState.HELD)


@pytest.mark.rows("O8", "A18", "A19", "S15")
def test_standbys_take_over_from_runs_that_are_killed_one_after_the_other(
    place: PipelinePlace,
) -> None:
    """What a crash left in doubt is decided, with what the destination has, before the next one:
    then everything is delivered once, in the order of each customer, and nothing stays behind.
    """
    luck = random.Random(seed())
    file = place.write("charges.toml", SLOW_CHARGES)
    active = place.start("run", str(file))
    times: list[float] = []
    doubted: Counter[str] = Counter()
    for _ in range(TAKE_OVERS):
        delivers(place, active)
        waiting = standby(place, file)
        delivers(place, active)
        time.sleep(luck.random() / 2)
        killed = active.below()
        active.kill(signal.SIGKILL)
        times.append(continues(place, waiting))
        active = waiting
        wait_for(partial(all_gone, killed), active, TIMEOUT_S)  # they charge on
        wait_for(lambda: is_complete(place), active, TIMEOUT_S)
        doubted.update(judge(place))
    wait_for(lambda: not parked(place, *OPEN), active, TIMEOUT_S)
    finish(place, active)
    assert parked(place, *OPEN) == set()
    assert sorted(place.charged()) == [*range(place.fed)]
    assert runs_of(place) == TAKE_OVERS + 1
    in_resends = doubted.pop(IN_A_RESEND, 0)
    assert in_resends <= TAKE_OVERS, "one released event is sent at a time"
    assert max(doubted.values(), default=0) <= 2, "more than a window of each partition"
    print(f"take-overs after SIGKILL: {', '.join(f'{each:.1f} s' for each in times)}")  # noqa: T201
    shown = f"in doubt by run: {dict(sorted(doubted.items()))}, in resends: {in_resends}"
    print(f"{place.fed} events; {shown}")  # noqa: T201


@pytest.mark.rows("O8", "A17", "S19")
def test_a_run_that_is_frozen_is_replaced_and_is_fenced_when_it_wakes_up(
    place: PipelinePlace, postgres_url: str
) -> None:
    """In PostgreSQL; a process that is frozen inside of a commit keeps a SQLite ledger locked."""
    place.ledger = postgres_url
    file = place.write("charges.toml", IN_POSTGRES)
    place.variables = {**place.variables, "LEDGER": postgres_url}
    first = place.start("run", str(file))
    delivers(place, first)
    waiting = standby(place, file)
    delivers(place, first)
    frozen = [first.pid, *first.below()]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    took = continues(place, waiting)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    assert first.wait(TIMEOUT_S) != 0
    assert "was replaced by run 2" in first.said()
    held = finish(place, waiting)
    assert len(held) <= 2
    print(f"take-over after SIGSTOP: {took:.1f} s")  # noqa: T201


@pytest.mark.rows("O8", "A17", "A18")
def test_a_run_that_is_cut_off_the_ledger_is_replaced_and_delivers_nothing_more(
    place: PipelinePlace, postgres_url: str
) -> None:
    """Of two runs only the first one reaches the ledger through a wire that is cut."""
    place.ledger = postgres_url
    file = place.write("charges.toml", IN_POSTGRES)
    port = urlsplit(postgres_url).port
    assert port is not None
    proxy = TcpProxy(port)
    try:
        through = postgres_url.replace(f":{port}/", f":{proxy.port}/")
        place.variables = {**place.variables, "LEDGER": through}
        first = place.start("run", str(file))
        delivers(place, first)
        place.variables = {**place.variables, "LEDGER": postgres_url}
        waiting = standby(place, file)
        delivers(place, first)
        proxy.rule = lambda _: "cut"
        took = continues(place, waiting)
        delivers(place, waiting)
        proxy.rule = lambda _: "pass"
        place.more_payments(ROWS)
        assert first.wait(TIMEOUT_S) != 0
        held = finish(place, waiting)
    finally:
        proxy.close()
    assert len(held) <= 2
    print(f"take-over from a run without its ledger: {took:.1f} s")  # noqa: T201


def test_an_orderly_stop_hands_over_at_once_and_with_nothing_in_doubt(place: PipelinePlace) -> None:
    file = place.write("charges.toml", SLOW_CHARGES)
    first = place.start("run", str(file))
    delivers(place, first)
    waiting = standby(place, file)
    delivers(place, first)
    said = place.semel("stop", "charges", "--ledger", place.ledger)
    first.finished(TIMEOUT_S)
    assert "ended" in said
    print(f"take-over after semel stop: {continues(place, waiting):.1f} s")  # noqa: T201
    assert finish(place, waiting) == set()


def test_a_standby_ends_by_a_signal_and_once_does_not_wait(place: PipelinePlace) -> None:
    file = place.write("charges.toml", SLOW_CHARGES)
    first = place.start("run", str(file))
    delivers(place, first)
    waiting = standby(place, file)
    waiting.kill(signal.SIGTERM)
    waiting.finished(TIMEOUT_S)
    assert "is running" in place.semel_fails("run", str(file), "--once")
    assert first.process.poll() is None
    assert runs_of(place) == 1
