"""One partition of one minibatch: one pass, several sinks, recorded cuts, and what may not be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, DeliveryError, Diverged, HeldInDoubt, NotDelivered
from semel.events import Attempt, Identity
from semel.ledger.keys import make_prefix
from semel.protocol import OnDoubt
from semel.sinks import Retry
from support.destinations import Crash, Database, Post, crash, crash_after, fine
from support.pipeline import (
    COUNTER,
    EXACT,
    GIVEN,
    INCREASING,
    KINDS,
    POSITION,
    World,
    events,
    once,
    reply_lost,
    world_like,
    world_of,
)

INPUT = "a1 b2 c3 d4 e5 f6"
IDENTITIES: dict[str, Identity] = {
    "position": POSITION,
    "given": GIVEN,
    "increasing": INCREASING,
    "counter": COUNTER,
}


# -- a partition belongs to one task


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_in_two_tasks_of_a_run_is_refused_with_the_reason(kind: str) -> None:
    world = world_like(kind)
    opening = world.open(0)
    world.task(opening, "a1 b2", spark_task=3)
    sent = len(world.out.calls)
    with pytest.raises(ConfigurationError, match="minPartitions"):
        world.task(opening, "c3 d4", spark_task=4)
    assert len(world.out.calls) == sent


def test_a_retry_of_the_same_task_is_not_refused_nor_another_number_in_the_next_run() -> None:
    world = world_like("transactional")
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, INPUT, spark_task=3)
    world.start()
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, INPUT, spark_task=5))
    assert world.out.seen == INPUT


def test_without_that_rule_the_second_task_would_be_taken_for_a_retry() -> None:
    world = world_like("transactional", chunk_rows=1)
    opening = world.open(0)
    world.task(opening, "a1 b2", spark_task=3)
    with pytest.raises(Diverged):  # found out by content, not by its task: too late in general
        world.task(opening, "c3 d4", spark_task=3)


@pytest.mark.parametrize(
    ("identity", "text", "error"),
    [
        (POSITION, "a1 b3 c2", Diverged),
        (POSITION, "a1 b2 c2", ConfigurationError),
        (GIVEN, "a3 b1", Diverged),
    ],
)
def test_offsets_that_go_backwards_or_repeat_are_refused(
    identity: Identity, text: str, error: type[Exception]
) -> None:
    world = world_like("transactional", identity)
    opening = world.open(0)
    with pytest.raises(error):
        world.task(opening, [events(word) for word in text.split()])
    assert "c2" not in world.out.seen


# -- several sinks


class Once:
    """Batches that can be read one time."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self._batches = batches
        self.passes = 0
        self.given = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.passes += 1
        for batch in self._batches:
            self.given += 1
            yield batch


def two() -> World:
    world = World()
    world.add(Database(), "left", chunk_rows=2)
    world.add(Post(), "right")
    world.start()
    return world


@pytest.mark.rows("S20")
def test_one_pass_over_the_rows_feeds_every_sink() -> None:
    world = two()
    opening = world.open(0)
    batches = Once(events("a1 b2 c3"), events("d4 e5 f6"))
    reports = world.task(opening, batches)
    assert (batches.passes, batches.given) == (1, 2)
    assert [report.sink for report in reports] == ["left", "right"]
    world.driver.end(opening, reports)
    assert world.destinations["left"].seen == world.destinations["right"].seen == INPUT


@pytest.mark.rows("S20")
def test_namespaces_are_by_name_not_by_place_in_the_list() -> None:
    world = two()
    opening = world.open(0)
    world.destinations["right"].plan(fine, fine, crash)
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    world.sinks.reverse()
    world.start()
    world.minibatch(0, INPUT)
    assert world.destinations["left"].seen == INPUT
    assert world.destinations["right"].seen == "a1 b2 d4 e5 f6"
    assert world.parked("right") == ["c3 held"]
    assert world.parked("left") == []


@pytest.mark.rows("S20")
def test_one_sinks_stop_leaves_what_the_others_did() -> None:
    world = World()
    world.add(Database(), "left", chunk_rows=1)
    world.add(Post(), "right", on_doubt=OnDoubt.STOP)
    world.start()
    opening = world.open(0)
    world.destinations["right"].plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, [events(word) for word in INPUT.split()])
    left = world.destinations["left"].seen
    assert left.startswith("a1 b2")
    with pytest.raises(HeldInDoubt):
        world.task(opening, INPUT)
    assert not world.opened().complete
    world.resolve("b2", "discarded", "right")
    world.driver.end(opening, world.task(opening, INPUT))
    assert world.destinations["left"].seen == INPUT
    assert world.destinations["right"].seen == "a1 c3 d4 e5 f6"


@pytest.mark.rows("S20")
def test_two_outputs_of_one_minibatch_do_not_mask_each_other() -> None:
    world = World()
    world.add(Post(), "out")
    world.add(Post(), "out2")  # a prefix of the other's name
    world.start()
    world.destinations["out"].plan(crash_after)
    opening = world.open(0)
    with pytest.raises(Crash):
        world.task(opening, "a1")
    world.driver.end(opening, world.task(opening, "a1"))
    assert world.parked("out") == ["a1 held"]
    assert world.parked("out2") == []
    assert world.destinations["out2"].seen == "a1"
    assert len(list(world.store.memory.scan("streams", make_prefix("pay", "out")))) == 1


def test_a_sink_that_joins_later_begins_with_the_minibatch_it_joins_at() -> None:
    world = world_of(Database())
    world.minibatch(0, "a1")
    world.add(Database(), "new")
    world.start()
    world.minibatch(1, "b2")
    assert world.out.seen == "a1 b2"
    assert world.destinations["new"].seen == "b2"


# -- recorded spans


@pytest.mark.rows("A9", "A11")
@pytest.mark.parametrize("kind", ["repeatable", "repeatable by chunk", "probing"])
@pytest.mark.parametrize(("rows", "chunks"), [(1, 1), (5, 1), (2, 7), (100, 100)])
def test_a_recorded_span_is_cut_as_it_was_recorded_whatever_the_limits_are_now(
    kind: str, rows: int, chunks: int
) -> None:
    world = world_like(kind, chunk_rows=3, span_chunks=2)
    opening = world.open(0)
    world.out.plan(fine, crash_after)
    text = f"{INPUT} a7 b8 c9"
    with pytest.raises(Crash):
        world.task(opening, text)
    own = {"keyed_by_event": False} if kind.endswith("chunk") else {}
    world.sinks[0] = world.out.sink(chunk_rows=rows, span_chunks=chunks, **own)
    world.out.calls.clear()
    asked = len(getattr(world.out, "asked", []))
    world.driver.end(opening, world.task(opening, text))
    assert world.out.seen == text
    if kind == "probing":
        keys = world.out.asked[asked:]
        assert [key.rpartition("/")[2] for key in keys] == ["0-3", "3-6"]
    else:
        assert world.out.calls[:2] == [["a1", "b2", "c3"], ["d4", "e5", "f6"]]


def test_without_the_recorded_cut_a_key_of_a_chunk_would_not_absorb() -> None:
    """The same rows cut again under other limits has other keys: this is what the record is for."""
    world = world_like("repeatable by chunk", chunk_rows=3, span_chunks=2)
    opening = world.open(0)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    [key] = world.out.keys.at
    assert key.endswith("/0-3")
    world.store.memory._tables["events"].clear()  # as if nothing had been recorded
    world.sinks[0] = world.out.sink(chunk_rows=2, span_chunks=2, keyed_by_event=False)
    world.task(opening, INPUT)
    assert once(world.out.seen) == "a1 a1 b2 b2 c3 c3 d4 e5 f6"


@pytest.mark.rows("S10")
def test_a_record_is_skipped_if_and_only_if_it_is_in_its_set() -> None:
    world = world_of(Post(), window=2)
    opening = world.open(0)
    world.out.plan(fine, fine, fine, crash)  # d4 was about to be sent
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    [report] = world.task(opening, INPUT)
    world.driver.end(opening, [report])
    assert world.out.seen == "a1 b2 c3 e5 f6"
    assert world.parked() == ["c3 held", "d4 held"]
    assert (report.delivered, report.parked) == (2, 2)


@pytest.mark.rows("S6")
@pytest.mark.parametrize("kind", KINDS)
def test_the_row_in_streams_is_durable_before_the_first_effect(kind: str) -> None:
    world = world_like(kind, chunk_rows=2, span_chunks=2)
    opening = world.open(0)
    assert world.streams() == []
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, INPUT, number=5)
    [row] = world.streams()
    assert (row.partition, row.state.value, row.attempt) == ("0", "pending", Attempt(1, 5))
    assert world.out.seen == ""


@pytest.mark.rows("A4", "A19")
@pytest.mark.parametrize("kind", ["opaque", "repeatable", "probing"])
def test_the_intent_is_durable_before_the_first_effect_and_tells_range_and_state(kind: str) -> None:
    world = world_like(kind, chunk_rows=2, span_chunks=2)
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    [span] = world.spans()
    assert span.start == 0
    assert span.stop == (2 if kind == "opaque" else 4)
    assert span.state.value == "intended"
    assert span.osn == (1, span.stop)
    assert world.out.seen == ""


@pytest.mark.parametrize("kind", KINDS)
def test_borders_of_arrow_batches_do_not_matter_for_a_replay(kind: str) -> None:
    world = world_like(kind, chunk_rows=2, span_chunks=1)
    opening = world.open(0)
    world.out.plan(fine, fine, crash)
    with pytest.raises(Crash):
        world.task(opening, [events("a1 b2 c3"), events("d4 e5 f6")])
    [report] = world.task(opening, [events("a1"), events("b2 c3 d4 e5"), events("f6")])
    world.driver.end(opening, [report])
    parked = {each.split()[0] for each in world.parked()}
    assert once(world.out.seen) == " ".join(n for n in INPUT.split() if n not in parked)
    assert report.count == 6


@pytest.mark.parametrize("kind", KINDS)
def test_every_reply_of_the_ledger_may_be_lost(kind: str) -> None:
    for number in range(12):
        world = world_like(kind, chunk_rows=2, span_chunks=1)
        world.store.script.extend([*[fine] * number, reply_lost])
        world.minibatch(0, INPUT)
        world.minibatch(1, "a7")
        assert once(world.out.seen) == f"{INPUT} a7", number
        assert world.parked() == [], number


# -- the end of the input proves nothing


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_ends_early_is_not_completed_and_the_rest_comes_later_once(kind: str) -> None:
    world = world_like(kind, chunk_rows=2, span_chunks=1)
    opening = world.open(0)
    world.task(opening, "a1 b2 c3 d4")  # its report never reaches the driver
    [report] = world.task(opening, "a1 b2")
    if world.sinks[0].capability.value in ("repeatable", "probing", "opaque"):
        assert report.short
    with pytest.raises(Diverged):
        world.driver.end(opening, [report])
    assert not world.opened().complete
    world.driver.end(opening, world.task(opening, INPUT))
    assert once(world.out.seen) == INPUT
    assert world.parked() == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_whose_input_ended_early_reports_fewer_and_the_next_goes_on(kind: str) -> None:
    world = world_like(kind, chunk_rows=4, span_chunks=1)
    opening = world.open(0)
    [early] = world.task(opening, "a1 b2 c3")
    assert early.count == 3
    world.start()  # the query was stopped and not completed
    world.minibatch(0, INPUT)
    assert once(world.out.seen) == INPUT
    assert world.parked() == []


def test_a_pending_partition_that_no_task_came_for_is_diverged() -> None:
    world = world_like("transactional")
    opening = world.open(0)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    with pytest.raises(Diverged, match="no task reports it"):
        world.driver.end(opening, [])


def test_a_minibatch_may_have_no_task_at_all_and_an_empty_partition_writes_nothing() -> None:
    world = world_like("transactional")
    opening = world.open(0)
    assert world.task(opening, "") == []
    assert world.streams() == []
    world.driver.end(opening, [])
    world.minibatch(1, INPUT)
    assert world.out.seen == INPUT


# -- divergence


def both_digests(error: Exception, *digests: str) -> bool:
    return all(digest in str(error) for digest in digests)


@pytest.mark.rows("A22", "O24")
@pytest.mark.parametrize("kind", EXACT)
def test_other_content_under_what_is_recorded_is_diverged_and_nothing_is_sent(kind: str) -> None:
    world = world_like(kind, chunk_rows=2, span_chunks=2)
    opening = world.open(0)
    world.out.plan(fine, fine, crash)
    with pytest.raises(Crash):
        world.task(opening, f"{INPUT} a7 b8")
    recorded = [span.running for span in world.spans()] or [
        row.digest for row in getattr(world.out, "history", [])
    ]
    calls = len(world.out.calls)
    with pytest.raises(Diverged) as error:
        world.task(opening, f"a1=5 {INPUT[3:]} a7 b8")
    assert len(world.out.calls) == calls
    if recorded:
        assert any(digest in str(error.value) for digest in recorded)
    assert str(error.value).count("digest ") + str(error.value).count("sort key ") == 2
    world.driver.end(opening, world.task(opening, f"{INPUT} a7 b8"))
    assert once(world.out.seen) == f"{INPUT} a7 b8"


@pytest.mark.rows("O24")
def test_other_content_under_an_opaque_span_is_diverged_before_it_is_judged() -> None:
    world = world_of(Post(), window=3)
    opening = world.open(0)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    with pytest.raises(Diverged):
        world.task(opening, INPUT.replace("c3", "c3=9"))
    assert world.out.seen == "a1"
    assert world.parked() == []


@pytest.mark.rows("A22", "O24", "A10")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", ["given", "increasing", "counter"])
def test_other_content_under_a_complete_row_is_diverged_and_names_both_digests(
    kind: str, identity: str
) -> None:
    world = world_like(kind, IDENTITIES[identity])
    [first] = world.minibatch(0, INPUT)
    calls = len(world.out.calls)
    world.start()
    opening = world.open(0)
    reports = world.task(opening, f"{INPUT[:-2]}f6=9")
    with pytest.raises(Diverged) as error:
        world.driver.end(opening, reports)
    assert both_digests(error.value, first.digest, reports[0].digest)
    assert len(world.out.calls) == calls
    world.driver.end(opening, world.task(opening, INPUT))


@pytest.mark.rows("A10")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_complete_partition_is_counted_and_nothing_is_delivered(kind: str, identity: str) -> None:
    world = world_like(kind, IDENTITIES[identity])
    world.minibatch(0, INPUT)
    calls = len(world.out.calls)
    world.start()
    [report] = world.minibatch(0, INPUT)
    assert len(world.out.calls) == calls
    assert (report.count, report.suppressed) == (6, 6)
    world.minibatch(1, "a7")
    assert world.out.seen.split()[-1] == "a7"


@pytest.mark.parametrize("kind", KINDS)
def test_a_rerun_by_position_may_end_later_and_delivers_only_what_is_new(kind: str) -> None:
    world = world_like(kind, POSITION, chunk_rows=2)
    world.minibatch(0, "a1 b2 c3")
    world.start()
    world.minibatch(0, INPUT)
    assert once(world.out.seen) == INPUT
    world.minibatch(1, "a7")
    assert once(world.out.seen) == f"{INPUT} a7"
    if "batches" not in kind:
        assert sorted(world.out.numbers) == [1, 2, 3, 4, 5, 6, 7]


def test_the_same_id_with_other_content_in_one_minibatch_is_diverged() -> None:
    world = world_like("transactional", GIVEN)
    opening = world.open(0)
    with pytest.raises(Diverged):
        world.task(opening, "a1 a1=5")
    assert world.out.seen == ""
    world.driver.end(opening, world.task(opening, "a1 a1 b2"))
    assert world.out.seen == "a1 b2"


# -- unknown outcomes of those that can tell


@pytest.mark.rows("A13", "O23")
@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("arrives", [True, False])
def test_an_unknown_outcome_is_found_out_and_nothing_is_in_doubt(kind: str, arrives: bool) -> None:
    def unknown(act: Any) -> Any:
        if arrives:
            act()
        raise TimeoutError("no reply")

    world = world_like(kind, chunk_rows=2)
    world.out.plan(unknown, fine, unknown)
    world.minibatch(0, INPUT)
    assert once(world.out.seen) == INPUT
    assert world.parked() == []


@pytest.mark.parametrize("kind", EXACT)
def test_a_destination_that_never_answers_fails_the_task_and_leaves_no_doubt(kind: str) -> None:
    world = world_like(kind, chunk_rows=2, retry=Retry(1.0, 4.0, 10.0))

    def silent(act: Any) -> Any:
        raise TimeoutError("no reply")

    world.out.always = silent
    opening = world.open(0)
    with pytest.raises(DeliveryError):
        world.task(opening, INPUT)
    assert world.parked() == []
    world.out.always = fine
    world.driver.end(opening, world.task(opening, INPUT))
    assert once(world.out.seen) == INPUT


def test_a_destination_that_cannot_be_reached_leaves_no_doubt_either() -> None:
    world = world_of(Post(), retry=Retry(1.0, 4.0, 10.0))
    [sink] = world.sinks

    class Closed(type(sink)):  # type: ignore[misc]
        def open(self, target: Any) -> Any:
            raise ConnectionError("refused")

    shut = Closed(name="out", function=world.out.take, retry=Retry(1.0, 4.0, 10.0))
    opening = world.open(0)
    with pytest.raises(NotDelivered, match="could not be reached"):
        world.task(opening, INPUT, sinks=[shut])
    world.driver.end(opening, world.task(opening, INPUT))
    assert world.out.seen == INPUT
    assert world.parked() == []
