"""The end of a minibatch: what a sink does then is done from complete rows, and never left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from semel.errors import Fenced, NotDelivered, OutcomeUnknown, Rejected
from semel.events import Identity, Minibatch
from semel.ledger.verbs.divergence import judge_minibatch
from semel.protocol import Judgement
from semel.sinks import Ended, Retry, Target
from support.destinations import Crash, FolderLine, FolderModel, FolderSink
from support.pipeline import COUNTER, GIVEN, POSITION, World, crash_everywhere, world_of

INPUT = "a1 b2 c3 d4 e5"
NAMES = INPUT.split()


@dataclass
class Shelf(FolderModel):
    """Part files, and what was announced at the end of each minibatch: the first one stands."""

    told: dict[Minibatch, list[str]] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    raises: list[Exception] = field(default_factory=list)

    def sink(self, name: str = "out", **settings: Any) -> ShelfSink:
        return ShelfSink(name=name, destination=self, **settings)

    def conclude(self, ended: Ended) -> None:
        def tell() -> None:
            if self.raises:
                raise self.raises.pop(0)
            self.ended.append(ended)
            names = [name for part in ended.parts for name in self.places[part.placed["place"]]]
            self.told.setdefault(ended.minibatch, names)

        self.send(["(conclude)"], tell)

    def readers_see(self) -> list[str]:
        return [name for _, names in sorted(self.told.items()) for name in names]


@dataclass(frozen=True, kw_only=True)
class ShelfSink(FolderSink):
    def open(self, target: Target) -> ShelfLine:
        return ShelfLine(self.destination, target, self.locate(target))

    def conclude(self, ended: Ended) -> None:
        self.destination.conclude(ended)


@dataclass(eq=False)
class ShelfLine(FolderLine):
    def finish(self) -> dict[str, Any] | None:  # type: ignore[override]
        super().finish()
        return {"place": self.place} if self.written else None


def shelf(identity: Identity = GIVEN, **settings: Any) -> World:
    return world_of(Shelf(), identity, chunk_rows=2, **settings)


def test_a_minibatch_is_concluded_once_the_ledger_has_it_complete() -> None:
    world = shelf()
    assert world.sinks[0].concludes
    opening = world.open(0)
    reports = world.task(opening, "a1 b2", partition="0")
    reports += world.task(opening, "c3", partition="1", spark_task=1)
    assert world.out.ended == []
    world.driver.end(opening, reports)
    [ended] = world.out.ended
    assert (ended.pipeline, ended.sink, ended.minibatch) == ("pay", "out", Minibatch(1, 0))
    told = [(part.partition, part.count, dict(part.placed)) for part in ended.parts]
    assert told == [("0", 2, {"place": "1.0/part-0"}), ("1", 1, {"place": "1.0/part-1"})]
    assert [part.attempt for part in ended.parts] == [report.attempt for report in reports]
    assert all(row.location is None for row in world.streams())


def test_a_minibatch_without_events_is_not_concluded() -> None:
    world = shelf()
    world.driver.end(world.open(0), [])
    assert world.out.ended == []


@pytest.mark.parametrize("identity", [GIVEN, POSITION, COUNTER], ids=["given", "position", "count"])
def test_a_crash_at_any_call_leaves_no_minibatch_unconcluded(identity: Identity) -> None:
    def deliver(world: World) -> None:
        world.minibatch(1, "c3 d4")

    def begun() -> World:
        world = shelf(identity)
        world.minibatch(0, "a1 b2")
        return world

    for what, world in crash_everywhere(begun, deliver):
        seen = world.out.readers_see()
        world.start()
        deliver(world)
        world.minibatch(2, "e5")
        assert world.out.readers_see() == NAMES, what
        assert world.out.readers_see()[: len(seen)] == seen, what
        alike = {ended.minibatch: ended.parts for ended in world.out.ended}
        assert all(alike[each.minibatch] == each.parts for each in world.out.ended), what


@pytest.mark.parametrize("identity", [GIVEN, POSITION], ids=["given", "position"])
def test_what_readers_were_told_never_comes_again_when_the_checkpoint_is_lost(
    identity: Identity,
) -> None:
    def deliver(world: World) -> None:
        world.minibatch(1, "c3 d4")

    def begun() -> World:
        world = shelf(identity)
        world.minibatch(0, "a1 b2")
        return world

    for what, world in crash_everywhere(begun, deliver):
        seen = world.out.readers_see()
        world.start()
        world.minibatch(0, "a1 b2 c3 d4", query="another")
        world.minibatch(1, "e5", query="another")
        assert world.out.readers_see() == NAMES, what
        assert world.out.readers_see()[: len(seen)] == seen, what


def test_a_crash_while_an_older_generation_is_concluded_and_let_go_loses_nothing() -> None:
    def recover(world: World) -> None:
        world.start()
        opening = world.open(0, "another")
        reports = world.task(opening, "a1 b2 d4", partition="0")
        reports += world.task(opening, "c3 e5", partition="1", spark_task=1)
        world.driver.end(opening, reports)

    def left() -> World:
        world = shelf()
        opening = world.open(0)
        reports = world.task(opening, "a1 b2", partition="0")
        reports += world.task(opening, "c3", partition="1", spark_task=1)
        world.out.raises = [Rejected("not now")]
        with pytest.raises(Rejected):
            world.driver.end(opening, reports)
        return world

    for what, world in crash_everywhere(left, recover):
        recover(world)
        assert sorted(world.out.readers_see()) == NAMES, what


def test_a_conclusion_is_tried_again_while_that_may_help() -> None:
    world = shelf()
    world.out.raises = [NotDelivered("away"), OutcomeUnknown("lost"), OSError("foreign")]
    world.minibatch(0, INPUT)
    assert world.out.readers_see() == NAMES
    assert len(world.clock.slept) == 3


@pytest.mark.parametrize("error", [Rejected("no"), Fenced("a later run"), NotDelivered("away")])
def test_a_conclusion_that_fails_stops_the_query_and_the_next_run_makes_it(
    error: Exception,
) -> None:
    world = shelf(retry=Retry(for_s=0.0))
    world.out.raises = [error]
    with pytest.raises(type(error)):
        world.minibatch(0, INPUT)
    assert world.opened().complete
    assert world.out.readers_see() == []
    world.start()
    world.minibatch(0, INPUT)
    assert world.out.readers_see() == NAMES
    assert [name for call in world.out.calls for name in call if name == "(finish)"] == ["(finish)"]


def test_a_replaced_driver_concludes_nothing_that_a_later_one_did_not() -> None:
    world = shelf()
    early, opening = world.driver, world.open(0)
    reports = world.task(opening, INPUT)
    world.start()
    world.minibatch(0, INPUT)
    with pytest.raises(Fenced):
        early.end(opening, reports)
    assert len(world.out.ended) == 1


def test_a_judged_minibatch_is_concluded_as_recorded() -> None:
    world = shelf(COUNTER)
    world.out.raises = [Rejected("not now")]
    with pytest.raises(Rejected):
        world.minibatch(0, INPUT)
    judge_minibatch(world.client, Minibatch(1, 0), Judgement.AS_RECORDED, "ann", "looked")
    world.start()
    opening = world.open(0)
    assert opening.settled
    world.driver.end(opening, [])
    assert world.out.readers_see() == NAMES


def test_what_a_person_dropped_is_not_concluded_any_more() -> None:
    world = shelf()
    world.out.raises = [Rejected("not now")]
    with pytest.raises(Rejected):
        world.minibatch(0, "a1 b2")
    judge_minibatch(world.client, Minibatch(1, 0), Judgement.AS_REPLAYED, "ann", "looked")
    world.start()
    world.minibatch(0, INPUT)
    assert world.out.told == {Minibatch(2, 0): NAMES}


def test_sinks_without_an_end_cost_nothing_at_it() -> None:
    world = world_of(FolderModel(), chunk_rows=2)
    opening = world.open(0)
    reports = world.task(opening, INPUT)
    world.store.scans.clear()
    world.driver.end(opening, reports)
    assert [table for table, _ in world.store.scans] == ["streams"]


def test_a_crash_between_complete_and_the_end_is_found_by_a_batch_job_that_runs_again() -> None:
    world = shelf()
    world.out.raises = [Crash()]
    opening = world.open(0)
    with pytest.raises(Crash):
        world.driver.end(opening, world.task(opening, INPUT))
    assert world.driver.finished() is None
    world.start()
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, INPUT))
    world.driver.finish(opening)
    assert world.out.readers_see() == NAMES
