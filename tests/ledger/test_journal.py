"""Log-based state: deltas, full snapshots, restoring as of a minibatch, compaction, caches."""

from __future__ import annotations

import random
from typing import Any

import pytest

from semel.events.encoding.canonical_json import PreEncoded, canonical
from semel.ledger import journal as journals
from semel.ledger.journal import COUNTERS, Journal, JournalEntry, StateOperator
from semel.ledger.keys import make_key
from semel.ledger.payloads import load_payload
from semel.ledger.store.commit import Put
from support.ledger.one_pipeline import LedgerWorld

CLOCK = StateOperator("marker clock", journaled=False)


def write(world: LedgerWorld, *entries: JournalEntry) -> None:
    """Write entries as `complete` does."""
    world.store.commit([], journals.journal_updates(world.pipeline, entries))


def add(
    world: LedgerWorld,
    journal: Journal,
    number: int,
    delta: dict[str, Any] | PreEncoded,
    operator: StateOperator = COUNTERS,
    partition: str = "0",
) -> JournalEntry:
    """Restore, add one entry, write it."""
    base = journal.restore(operator, partition, before=number)
    entry = journal.entry(operator, partition, number, base, delta)
    write(world, entry)
    return entry


def numbers(
    world: LedgerWorld, operator: StateOperator = COUNTERS, partition: str = "0"
) -> list[int]:
    """The numbers of the rows that stand."""
    state = Journal(world.client).restore(operator, partition, before=10**9)
    return [number for number, _, _ in state.numbers]


def big(seed: int) -> dict[str, Any]:
    """A delta of about 1 KiB."""
    noise = random.Random(seed)
    return {f"e{noise.randrange(10)}": noise.randbytes(400).hex()}


# --- deltas and full snapshots --------------------------------------------------------------------


def test_a_delta_that_is_text_already_is_read_like_any_other(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    add(world, journal, 1, {"a": [1, 1], "b": [2, 1]})
    add(world, journal, 2, PreEncoded(b'{"b":[5,1],"c":[6,1]}'))
    state = journal.restore(COUNTERS, "0", before=3)
    assert state.values == {"a": [1, 1], "b": [5, 1], "c": [6, 1]}


@pytest.mark.parametrize("names", [["a", "b"], ["b"]], ids=["all", "some"])
def test_a_full_snapshot_of_a_text_has_every_name(world: LedgerWorld, names: list[str]) -> None:
    journal = Journal(world.client)
    add(world, journal, 1, {"a": ["x" * 5_000], "b": ["y"]})
    text = PreEncoded(canonical({name: ["new"] for name in names}).encode())
    entry = add(world, journal, 2, text)
    assert entry.full
    state = Journal(world.client).restore(COUNTERS, "0", before=3)
    assert state.values == {"a": ["x" * 5_000], "b": ["y"]} | {name: ["new"] for name in names}


@pytest.mark.rows("O12", "O13")
def test_a_journaled_operator_writes_only_what_changed(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    add(world, journal, 1, {"a": 3, "b": 1})
    entry = add(world, journal, 2, {"a": 4})
    assert not entry.full
    assert load_payload(entry.text)["state"] == {"a": 4}
    assert journal.restore(COUNTERS, "0", before=3).values == {"a": 4, "b": 1}


@pytest.mark.rows("O12", "O14")
def test_an_operator_that_is_not_journaled_is_always_written_in_full(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    entries = [add(world, journal, at, {f"k{at % 3}": at}, CLOCK) for at in range(1, 9)]
    assert all(entry.full for entry in entries)
    assert load_payload(entries[-1].text)["state"] == {"k0": 6, "k1": 7, "k2": 8}
    assert len(numbers(world, CLOCK)) <= 3


@pytest.mark.rows("O13", "O16")
def test_deltas_that_outgrow_the_full_snapshot_are_folded_into_one(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    fulls = []
    for number in range(1, 60):
        base = journal.restore(COUNTERS, "0", before=number)
        since, full = base.bytes_since_full(), base.bytes_of_full()
        entry = add(world, journal, number, big(number))
        assert entry.full == (since > max(journals.SMALLEST_FULL, full))
        if entry.full:
            fulls.append(number)
            expected = journal.restore(COUNTERS, "0", before=number + 1).values
            assert load_payload(entry.text)["state"] == expected
    assert len(fulls) >= 3


def test_small_deltas_are_not_folded_early(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    entries = [add(world, journal, number, {"a": number}) for number in range(1, 30)]
    assert not any(entry.full for entry in entries)


def test_a_value_of_none_removes_the_name(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    add(world, journal, 1, {"a": 1, "b": 2})
    add(world, journal, 2, {"a": None})
    assert journal.restore(COUNTERS, "0", before=3).values == {"b": 2}
    assert journal.restore(COUNTERS, "0", before=2).values == {"a": 1, "b": 2}
    entry = add(world, journal, 1, {"a": 1, "b": None}, CLOCK)
    assert load_payload(entry.text)["state"] == {"a": 1}


# --- restoring ------------------------------------------------------------------------------------


@pytest.mark.rows("O16")
def test_the_state_is_restored_as_of_the_minibatch_before(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    for number in (1, 2, 4):
        add(world, journal, number, {"a": number})
    restored = [journal.restore(COUNTERS, "0", before=n).values.get("a") for n in range(1, 7)]
    assert restored == [None, 1, 2, 2, 4, 4]


@pytest.mark.rows("O19")
def test_state_is_kept_per_partition_and_found_from_another_process(world: LedgerWorld) -> None:
    here, elsewhere = Journal(world.client), Journal(world.another().client)
    add(world, here, 1, {"a": 1}, partition="0")
    add(world, here, 1, {"a": 100}, partition="1")
    add(world, here, 2, {"a": 2}, partition="0")
    assert elsewhere.restore(COUNTERS, "0", before=3).values == {"a": 2}
    assert elsewhere.restore(COUNTERS, "1", before=3).values == {"a": 100}
    assert elsewhere.restore(COUNTERS, "10", before=3).values == {}


@pytest.mark.rows("S20")
def test_operators_and_pipelines_do_not_mix(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    add(world, journal, 1, {"a": 1})
    add(world, journal, 1, {"a": 2}, journals.watermark_of("charge"))
    other = LedgerWorld(world.path, "payroll")
    assert Journal(other.client).restore(COUNTERS, "0", before=9).values == {}
    assert journal.restore(COUNTERS, "0", before=9).values == {"a": 1}
    assert journal.restore(journals.watermark_of("charge"), "0", before=9).values == {"a": 2}
    other.close()


def test_nothing_is_written_before_complete_says_so(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    base = journal.restore(COUNTERS, "0", before=1)
    entry = journal.entry(COUNTERS, "0", 1, base, {"a": 1})
    assert world.tables()["journal"] == 0
    assert journal.restore(COUNTERS, "0", before=2).values == {}
    [put] = journals.journal_updates("pay", [entry])
    assert isinstance(put, Put)
    assert put.key == make_key("journal", "pay", "counters", "0", 1)


# --- a history that never failed ------------------------------------------------------------------


@pytest.mark.rows("O16", "O17", "O18", "S13")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("operator", [COUNTERS, CLOCK], ids=["journaled", "full"])
def test_a_restored_state_equals_one_that_never_failed(
    world: LedgerWorld, seed: int, operator: StateOperator
) -> None:
    noise = random.Random(seed)
    said = f"seed {seed}"
    model: list[dict[str, Any]] = [{}]  # the state after each number
    warm, stale = Journal(world.client), Journal(world.client)
    rows_max = 0
    for number in range(1, 150):
        delta = {
            f"e{noise.randrange(12)}": noise.choice([None, number, noise.randbytes(300).hex()])
            for _ in range(noise.randrange(3))
        }
        for back in range(min(3, number)):
            before = number - back
            for journal in (warm, Journal(world.client), *([stale] * (noise.random() < 0.05))):
                restored = journal.restore(operator, "0", before=before).values
                assert restored == model[before - 1], f"{said}: as of {before}"
        if not delta:  # a minibatch without events of this partition
            model.append(model[-1])
            continue
        for _ in range(noise.randrange(3)):  # attempts that came to nothing
            base = warm.restore(operator, "0", before=number)
            warm.entry(operator, "0", number, base, {"zombie": number})
        writer = noise.choice([warm, Journal(world.client)])
        add(world, writer, number, delta, operator)
        after = {**model[-1], **delta}
        model.append({name: value for name, value in after.items() if value is not None})
        if noise.random() < 0.1:
            warm = Journal(world.client)
        rows_max = max(rows_max, world.tables()["journal"])
    assert rows_max < 60, said


@pytest.mark.rows("O18")
def test_compaction_keeps_two_restorable_points_and_every_minibatch_not_swept(
    world: LedgerWorld,
) -> None:
    journal = Journal(world.client)
    states: dict[int, dict[str, Any]] = {0: {}}
    dropped: set[int] = set()
    for number in range(1, 120):
        dropped.update(add(world, journal, number, big(number)).drop)
        states[number] = {**states[number - 1], **big(number)}
        for point in range(max(0, number - 2), number + 1):
            cold = Journal(world.client)
            assert cold.restore(COUNTERS, "0", before=point + 1).values == states[point]
    assert len(dropped) > 40
    assert sorted(dropped) + numbers(world) == list(range(1, 120))


@pytest.mark.rows("O17", "O18")
def test_a_journal_of_full_snapshots_keeps_only_the_last_few(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    for number in range(1, 50):
        add(world, journal, number, {"interval": number}, CLOCK)
        assert len(numbers(world, CLOCK)) <= 3
    assert numbers(world, CLOCK) == [47, 48, 49]


# --- caches ---------------------------------------------------------------------------------------


@pytest.mark.rows("S13")
def test_a_stale_cache_reads_what_came_since_and_gives_the_same_state(world: LedgerWorld) -> None:
    writer, stale = Journal(world.client), Journal(world.another().client)
    add(world, writer, 1, {"a": 1})
    assert stale.restore(COUNTERS, "0", before=2).values == {"a": 1}
    for number in range(2, 80):
        add(world, writer, number, {"a": number, **big(number)})
    cold = Journal(world.client).restore(COUNTERS, "0", before=80)
    assert stale.restore(COUNTERS, "0", before=80).values == cold.values
    assert cold.values["a"] == 79


@pytest.mark.rows("S13")
def test_a_cache_that_is_ahead_of_a_replay_is_not_used_for_it(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    for number in (1, 2, 3):
        add(world, journal, number, {"a": number})
    assert journal.restore(COUNTERS, "0", before=4).values == {"a": 3}
    assert journal.restore(COUNTERS, "0", before=3).values == {"a": 2}
    assert journal.restore(COUNTERS, "0", before=4).values == {"a": 3}


def test_a_warm_cache_reads_only_what_came_since(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    for number in range(1, 20):
        add(world, journal, number, {"a": number})
    before = journal.figures.journal_loaded
    journal.restore(COUNTERS, "0", before=20)
    assert journal.figures.journal_loaded - before == 1
    cold = Journal(world.client)
    cold.restore(COUNTERS, "0", before=20)
    assert cold.figures.journal_loaded == 19


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.rows("O20")
def test_figures_tell_what_was_created_and_loaded(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    entries = [add(world, journal, number, big(number)) for number in range(1, 40)]
    figures = journal.figures
    fulls = sum(entry.full for entry in entries)
    assert (figures.full_created, figures.journal_created) == (fulls, 39 - fulls)
    assert figures.bytes_created == sum(len(entry.text) for entry in entries)
    assert fulls > 0
    cold = Journal(world.client)
    state = cold.restore(COUNTERS, "0", before=40)
    loaded = cold.figures.full_loaded + cold.figures.journal_loaded
    assert loaded == len(numbers(world)) == len(state.numbers)
    assert cold.figures.full_loaded == sum(full for _, full, _ in state.numbers)
    assert cold.figures.bytes_loaded == sum(size for _, _, size in state.numbers)


@pytest.mark.rows("O20")
def test_loading_takes_time_that_is_counted(world: LedgerWorld) -> None:
    journal = Journal(world.client)
    scan = world.store.scan

    def slow(*arguments: Any, **options: Any) -> Any:
        world.clock.sleep(0.25)
        return scan(*arguments, **options)

    world.store.scan = slow  # type: ignore[method-assign]
    journal.restore(COUNTERS, "0", before=1)
    assert journal.figures.seconds_loading == 0.25
