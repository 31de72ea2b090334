"""The state of continuous queries: kept by Spark in a session of semel's, restored after kills."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from semel.errors import ConfigurationError
from semel.ledger import StateKind
from semel.operate import open_ledger, read_status
from semel.spark.session import CHANGELOG, PROVIDER, ROCKSDB, STATES, make_session
from semel.verify.demo.charge_server import Charge
from support.spark.driver_scripts import Bed, assert_once, assert_ordered
from support.spark.state_job import FAILURES, QUERIES, RETAINED
from support.spark.stateful_job import BEGAN_S, STEP_S, WINDOW_S

LONG_S = 400.0
FILES, ROWS = 5, 16


def test_a_session_keeps_state_in_a_known_way_or_says_which_there_are() -> None:
    with pytest.raises(ConfigurationError, match="'changelog' or 'snapshots', got 'delta'"):
        make_session("x", state="delta")
    assert {each[PROVIDER] for each in STATES.values()} == {ROCKSDB}
    assert {name: each[CHANGELOG] for name, each in STATES.items()} == {
        "changelog": "true",
        "snapshots": "false",
    }


def windows() -> dict[tuple[str, int], int]:
    """What each customer paid in each window that has ended when the last payment comes."""
    found: dict[tuple[str, int], int] = defaultdict(int)
    ends = (FILES * ROWS - 1) * STEP_S + BEGAN_S
    for payment in range(FILES * ROWS):
        began = (payment * STEP_S + BEGAN_S) // WINDOW_S * WINDOW_S
        if began + WINDOW_S <= ends:
            found[f"c{payment % 4}", began * 1_000_000] += payment
    return found


def alerted() -> dict[tuple[str, int], int]:
    """The payments that worked after at least three that had failed, and how many had."""
    failures: dict[int, int] = defaultdict(int)
    found = {}
    for payment in range(FILES * ROWS):
        customer = payment % 4
        if payment // 4 % (3 + customer) != 2 + customer:
            failures[customer] += 1
            continue
        if failures[customer] >= FAILURES:
            found[f"c{customer}", payment] = failures[customer]
        failures[customer] = 0
    return found


def assert_exact(charges: list[Charge], expected: dict[tuple[str, int], int]) -> None:
    """Each output came once, with the amount of a run without kills, in order and numbered without
    a gap.
    """
    assert_once(charges, list(expected))
    assert_ordered(charges)
    assert {(each.entity, each.event): each.amount for each in charges} == expected
    assert [each.osn for each in charges] == list(range(1, len(charges) + 1))


def versions(state: Path, ending: str) -> dict[str, list[int]]:
    """The versions of each store of which there is a file with this ending."""
    found: dict[str, list[int]] = defaultdict(list)
    for file in state.rglob(f"[0-9]*.{ending}"):
        found[str(file.parent.relative_to(state))].append(int(file.name.partition(".")[0]))
    return {store: sorted(of) for store, of in found.items()}


@pytest.mark.rows("O4", "O5", "O12", "O13", "O14", "O15", "O16", "O17", "O18", "O19", "O20", "O24")
@pytest.mark.needs("transformWithState")
def test_state_is_restored_after_kills_and_each_output_comes_once(bed: Bed) -> None:
    bed.payments(files=FILES, rows=ROWS)
    second = bed.folder / "second"
    second.mkdir()
    for file in sorted(bed.input.iterdir())[1:4]:
        shutil.copy2(file, second)  # with its time: Spark reads files in that order
    bed.house.arm("complete.after", after=11)  # what was complete is compared with its replay
    bed.house.arm("effect.before", after=4)
    bed.house.arm("effect.after", after=12)
    settings = bed.settings(
        steps=["complete.after"],
        sink_settings={"steps": ["effect.before", "effect.after"], "chunk_rows": 3},
        conf={"spark.semel.second": str(second)},
    )
    run = bed.start(settings, script="support.spark.state_job")
    assert run.wait(LONG_S) == -9, run.said()
    bed.end_leftovers()
    run = bed.start(settings, script="support.spark.state_job")
    run.finished(LONG_S)
    assert len(bed.house.taken()) == 3, "two workers were killed as well"

    of = {name: bed.house.charges(name) for name in QUERIES}
    everything = range(FILES * ROWS)
    assert_exact(of["windowed"], windows())
    assert_exact(of["whole"], windows())
    refunded = range(ROWS, 4 * ROWS)
    assert_exact(of["paired"], {(f"c{at % 4}", at): at * 2 for at in refunded})
    assert_exact(of["deduplicated"], {(f"c{at % 4}", at): at for at in everything})
    assert_exact(of["alerts"], alerted())

    assert_kept(bed)
    restored = list(map(int, re.findall(r"restored (\d+)", run.said())))
    assert len(restored) == RETAINED, "two points can be restored"
    assert all(restored)
    assert_figures(str(settings.ledger))


def assert_kept(bed: Bed) -> None:
    """The files of changelogs and snapshots, as each query was set to keep them."""
    for name in QUERIES:
        state = bed.folder / f"checkpoint-{name}" / "state"
        changelogs, snapshots = versions(state, "changelog"), versions(state, "zip")
        if name == "whole":
            assert changelogs == {}
            assert all(len(of) >= RETAINED for of in snapshots.values())
            continue
        assert changelogs
        if name == "windowed":
            for store, of in changelogs.items():
                assert of == list(range(of[0], of[-1] + 1)), "the log has no gap"
                assert of[0] > 1, "what nothing restores from was removed"
                assert snapshots[store][0] < of[-1] - RETAINED + 2, "the older point has its base"


def assert_figures(ledger: str) -> None:
    """What `semel status` shows of the last run, which restored its state."""
    with open_ledger(ledger) as found:
        status = {name: read_status(found, name, watch=False) for name in QUERIES}
    for name, each in status.items():
        assert each.figures is not None, name
        assert each.figures.run == each.run
        assert each.figures.rates is not None
        assert each.figures.query is not None
        assert each.figures.state, name
    [windowed] = status["windowed"].figures.state  # type: ignore[union-attr, misc]
    assert windowed.kind is StateKind.CHANGELOG
    assert (windowed.stores, windowed.rows > 0) == (2, True)
    assert windowed.changelogs_written
    assert windowed.snapshots_written is not None
    assert windowed.rows_removed
    assert windowed.memory_bytes
    states = [state for each in status.values() for state in each.figures.state or ()]  # type: ignore[union-attr]
    assert sum(state.loads or 0 for state in states) > 0, "restored from the checkpoint"
    assert sum(state.changelogs_loaded or 0 for state in states) > 0
    [whole] = status["whole"].figures.state  # type: ignore[union-attr, misc]
    assert whole.kind is StateKind.SNAPSHOTS
    assert whole.changelogs_written == 0
    assert whole.snapshots_written
    assert whole.bytes_copied
