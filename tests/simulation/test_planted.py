"""A checker that finds nothing proves nothing: bugs are planted, and each has to be found.

A bug is planted from this side, by replacing a part of the product while its worlds are played.
Each is a mistake that a change could make; the hunt that finds it is named beside it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delivery import test_generations, test_heads, test_leases, test_partitions
from ledger import test_complete, test_journal
from semel.delivery import calling
from semel.delivery.parking import in_doubt, parking, resend, resend_attempt
from semel.delivery.partition import Buffer, SinkDelivery
from semel.delivery.recovery import close_generation
from semel.delivery.strategies import Finish, intent, progress, repeat
from semel.errors import (
    ConfigurationError,
    DeliveryError,
    Diverged,
    Fenced,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SemelError,
)
from semel.ledger import journal
from semel.ledger.keys import EVENTS_TABLE, PIPELINES_TABLE, STREAMS_TABLE, make_key, make_prefix
from semel.ledger.rows import PartitionRow, SpanRow, read_description
from semel.ledger.store.commit import Equals, Put, Sweep
from semel.ledger.verbs import (
    complete,
    generations,
    open_checks,
    parked,
    partitions,
)
from semel.ledger.verbs import open as open_verb
from semel.ledger.verbs.complete import Report
from semel.protocol import (
    DOUBT,
    RESUME,
    Action,
    Capability,
    Found,
    OnDoubt,
    OnReject,
    PartitionState,
    Rule,
)
from semel.sinks import DELIVERED
from semel.verify.simulator import stateful_destinations
from semel.verify.simulator.cases import Case, Variant
from semel.verify.simulator.checker import Verdict
from semel.verify.simulator.inputs import Identities
from semel.verify.simulator.worlds import SimulatedWorld, run_world
from support.explore import TASKS, Enough, Explorer, explore
from support.ledger.one_pipeline import LedgerWorld

WORLDS = 3_000
"""So many random worlds are played before a bug counts as not found."""

Hunt = Callable[[], bool]
Plant = Callable[[], Any]


# -- hunting


def every_crash(
    case: Case, refused: frozenset[int] = frozenset(), shut_s: float | None = None
) -> Hunt:
    """Hunt with the explorer, until its first violation."""
    return lambda: bool(explore(case, quick=True, refused=refused, shut_s=shut_s).violations)


def every_zombie(case: Case) -> Hunt:
    """Hunt with attempts that are paused and replaced, until the first violation."""

    def hunt() -> bool:
        explorer = Explorer(case, quick=True)
        with suppress(Enough):
            explorer.zombies(TASKS)
        return bool(explorer.explored.violations)

    return hunt


def random_worlds(fits: Callable[[SimulatedWorld], bool] = lambda _: True, seed: int = 11) -> Hunt:
    """Hunt in random worlds that fit, until one is invalid."""

    def hunt() -> bool:
        seeds = (seed * 1_000_000 + at for at in range(20 * WORLDS))
        fitting = (each for each in seeds if fits(SimulatedWorld(each)))
        for played, each in enumerate(fitting):
            if played == WORLDS:
                break
            if run_world(each).verdict is Verdict.INVALID:
                print(f"seed {each}, world {played}")  # noqa: T201 - replays what was found
                return True
        return False

    return hunt


def this_test(test: Callable[..., None], **fixtures: Any) -> Hunt:
    """Hunt with a test of the suite, which has to fail."""

    def hunt() -> bool:
        try:
            test(**fixtures)
        except (AssertionError, SemelError, pytest.fail.Exception):
            return True
        return False

    return hunt


def this_ledger_test(test: Callable[..., None]) -> Hunt:
    """The same, for a test that takes an empty ledger."""

    def hunt() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            world = LedgerWorld(Path(folder) / "ledger.db")
            try:
                return this_test(test, world=world)()
            finally:
                world.close()

    return hunt


# -- planting


@contextmanager
def replaced(where: Any, name: str, by: Any) -> Iterator[None]:
    """Put another part in a place, and the right one back."""
    right = where.__dict__[name]
    setattr(where, name, by)
    try:
        yield
    finally:
        setattr(where, name, right)


@contextmanager
def flipped(table: dict[Any, Any], key: Any, value: Any) -> Iterator[None]:
    """Change a row of a table, and change it back."""
    right = table[key]
    table[key] = value
    try:
        yield
    finally:
        table[key] = right


def row(found: Found, capability: Capability, action: Action) -> Plant:
    return partial(flipped, RESUME, (found, capability), Rule(action, "planted"))


def without_fence(self: partitions.PartitionClaim, found: PartitionRow, text: str) -> bool:
    """Looks like a take-over, and is not recorded."""
    self.predecessor, self.row, self._text = found, found, text
    return True


def ends_before_it_settles(self: partitions.PartitionClaim, *, may_stop: bool) -> None:
    """A run that is asked to stop ends at the next commit, whatever was sent before it."""
    del may_stop
    if self.stopping:
        raise self.opening.stop_requested


def any_other_row_is_a_stop(self: open_verb.OpenMinibatch, text: str | None, key: Any) -> Any:
    """Takes the row of a run that replaced this one for a request to stop."""
    del key
    return None if text in (None, self.text) else replace(self, text=text)


def effect_before_intent(self: intent.IntentStrategy, rows: Any) -> None:
    draft = self._drafts.next(rows)
    self._send(draft)
    before = None
    self._partition.claim.write(settled=before, intended=draft.span, parks=draft.parks)


def cut_anew(self: intent.IntentStrategy) -> None:
    """Reads the spans, and cuts the open one by the limits of today."""
    right_read_spans(self)
    for at, span in enumerate(self._recorded):
        size = self._partition.sink.chunk_rows
        chunks = tuple(
            (start, min(start + size, span.stop)) for start in range(span.start, span.stop, size)
        )
        self._recorded[at] = replace(span, chunks=chunks)


right_read_spans = intent.IntentStrategy._read_spans
right_finish = SinkDelivery.finish
right_claim = partitions.PartitionClaim.claim
right_write = partitions.PartitionClaim.write
right_move = complete.SequenceRow.moved
right_park = progress.ProgressStrategy._park
right_outcome = calling.outcome
right_judge = in_doubt.Doubts.judge
right_swept = open_verb._swept
right_open_span = close_generation.Closing._open_span


def completed_by_the_task(self: SinkDelivery) -> Any:
    """Takes the end of the input for the end of the partition."""
    report = right_finish(self)
    claim = self.partition.claim
    held = claim.row
    if report is not None and held is not None and held.state is PartitionState.PENDING:
        done = replace(
            held, state=PartitionState.COMPLETE, count=report.count, digest=report.digest
        )
        at = claim._row_key
        claim.client.commit([Equals(at, claim._text)], [Put(at, done.dump())])
    return report


def lease_from_the_reply(self: partitions.PartitionClaim, *first: Any, **what: Any) -> Any:
    found = right_claim(self, *first, **what)
    self.asked_at = self.client.clock.monotonic()
    return found


def parks_at_the_end(self: progress.ProgressStrategy, rows: Any, refused: dict[int, str]) -> None:
    """Lets progress pass first, and parks when the partition is done."""
    self._parked.update(int(rows.positions[at]) for at in refused)
    late = self.__dict__.setdefault("_planted", [])
    late.append((rows, refused))


def parks_late(self: progress.ProgressStrategy) -> Finish:
    for rows, refused in self.__dict__.get("_planted", []):
        right_park(self, rows, refused)
    return Finish(self._sent)


@contextmanager
def progress_before_parking() -> Iterator[None]:
    with (
        replaced(progress.ProgressStrategy, "_park", parks_at_the_end),
        replaced(progress.ProgressStrategy, "finish", parks_late),
    ):
        yield


def live_doubts_are_failures(
    self: in_doubt.Doubts,
    rows: Any,
    failures: Any,
    *,
    found_so: bool = False,
    counts: bool = True,
) -> Any:
    """Tries again what may have arrived."""
    if not found_so:
        failures = {at: NotDelivered(str(why)) for at, why in failures.items()}
    return right_judge(self, rows, failures, found_so=found_so, counts=counts)


def unknown_is_failed(call: Any) -> Any:
    result = right_outcome(call)
    return NotDelivered(str(result)) if isinstance(result, OutcomeUnknown) else result


@contextmanager
def unknown_taken_for_failed() -> Iterator[None]:
    with replaced(calling, "outcome", unknown_is_failed):
        yield


def sweeps_what_it_opens(pipeline: str, before: Any, row_: Any, sinks: Any) -> list[Any]:
    here = (row_.minibatch.generation, row_.minibatch.batch)
    return [
        Sweep(table, make_prefix(pipeline, sink, *here))
        for sink in sinks
        for table in (STREAMS_TABLE, EVENTS_TABLE)
    ]


def all_of_it_is_done(
    self: close_generation.Closing, leftover: Any, sink: Any, span: Any, handled: Any
) -> Any:
    """Moves the watermark over what was only intended."""
    for ids in span.ids:
        handled = replace(handled, ids=handled.ids | ids)
    return handled


def takes_nothing_over(
    scribe_: Any, opening: Any, sink: str, minibatch: Any, row_key: Any, text: str, process: Any
) -> Any:
    held = PartitionRow.load(text)
    found = scribe_.scan(EVENTS_TABLE, row_key.key + "/")
    spans = tuple(SpanRow.load(span) for _, span in found)
    return generations.Leftover(sink, minibatch, row_key, held, text, spans, held)


def stands_still(self: complete.SequenceRow, serial: int, after: Any) -> complete.SequenceRow:
    """Never moves L."""
    del after
    return replace(self, before=((serial, self.as_of(serial)),))


def stands_still_once_rescaled(
    self: complete.SequenceRow, serial: int, after: Any
) -> complete.SequenceRow:
    """Never moves L of a third partition: no world begins with so many."""
    move = stands_still if self.partition.endswith("of3") else right_move
    return move(self, serial, after)


def drops_everything(numbers: Any, number: int) -> tuple[int, ...]:
    """Keeps nothing but the newest snapshot."""
    del number
    return tuple(each for each, _, _ in numbers)


def any_report_will_do(client_: Any, opening: Any, sink: str, row_: Any, report: Any) -> Any:
    """Completes from whatever report is there, whoever holds the partition."""
    return report or Report(sink, row_.partition, row_.attempt, 0, "", row_.osn)


def settles_without_parks(self: partitions.PartitionClaim, **what: Any) -> None:
    right_write(self, **{**what, "parks": parked.NO_PARKS})


def last_come_first_sent(rows: Any, entity: Any) -> Any:
    found = [
        item
        for item in rows
        if (item[1].entity, item[1].scope) == entity and item[1].blocks and not item[1].state.final
    ]
    return found[-1] if found else None


def progress_apart(self: stateful_destinations.DatabaseSession, chunk: Any, progress: Any) -> Any:
    """Commits the effects, and the row that records them in a second transaction."""
    self.begin()
    began, target = self.began, self.target

    def effects() -> None:
        for event in chunk.events():
            self.destination.accept(event, target, began)

    def tell() -> None:
        place = (target.pipeline, target.sink, target.partition)
        self.destination.progress.rows[place] = progress

    self.send(("commit", len(chunk), "events"), effects)
    self.send(("commit the progress row",), tell)
    return DELIVERED


class AnyOpen:
    """A requirement on `open` that any minibatch of any run meets."""

    def __get__(self, claim: Any, owner: Any) -> Any:
        text = claim.client.store.read([claim._open_key])[claim._open_key]
        return Equals(claim._open_key, text)


def guests_welcome(self: partitions.PartitionClaim) -> None:
    """Renews the lease without asking whether `open` is still the same."""
    self.asked_at = self.client.clock.monotonic()


@contextmanager
def open_not_required() -> Iterator[None]:
    with (
        replaced(partitions.PartitionClaim, "_open_stands", AnyOpen()),
        replaced(partitions.PartitionClaim, "check", guests_welcome),
    ):
        yield


def swallows_the_fence(self: partitions.PartitionClaim, **what: Any) -> None:
    """Goes on although another attempt has the partition."""
    try:
        right_write(self, **what)
    except Fenced:
        return


def acts_at_once(self: Any) -> None:
    """Does not wait for the calls of the attempt before."""


def nobody_waits(self: Any, rows: Any, besides: Any = frozenset()) -> Any:
    return np.zeros(len(rows), dtype=bool)


def the_head_is_gone(self: parking.PartitionParking) -> None:
    """Takes a head that moved for a head that is gone."""
    self._heads.clear()
    self.read_marks()


def never_blocks(right: Any, *arguments: Any) -> Any:
    return replace(right(*arguments), blocks=False)


def digest_of_nothing(self: Any, stop: int) -> str:
    return "the same"


def any_sender_may(self: Any, slot: Any) -> bool:
    return True


def asks_nobody(self: Any, claimed: Any) -> Any:
    return self._call(claimed)


@contextmanager
def resenders_do_not_ask() -> Iterator[None]:
    with (
        replaced(resend.Resending, "_given_up", any_sender_may),
        replaced(resend_attempt.Again, "ask", asks_nobody),
    ):
        yield


right_note = repeat.Repeating._note


def a_refusal_is_always_believed(
    self: repeat.Repeating, place: int, why: DeliveryError | None
) -> None:
    """Takes a refusal for what became of the event, whatever an earlier call did."""
    if isinstance(why, Rejected):
        self.unsure.clear()
    right_note(self, place, why)


def nothing_is_doubtful(self: repeat.Repeating, places: Any) -> bool:
    return False


@contextmanager
def refusals_are_believed() -> Iterator[None]:
    with (
        replaced(repeat.Repeating, "_note", a_refusal_is_always_believed),
        replaced(repeat.Repeating, "_doubtful", nothing_is_doubtful),
    ):
        yield


def only_pending_is_open(
    scribe_: Any, recorded: str | None, before: Any, request: open_verb.OpenRequest
) -> None:
    """Looks for half-delivered partitions, and not for what is not concluded."""
    at = make_key(PIPELINES_TABLE, scribe_.pipeline)
    known = {} if recorded is None else read_description(recorded, at).get("sinks", {})
    for sink in set(known) - set(request.sinks):
        for row_key, text in scribe_.scan(STREAMS_TABLE, make_prefix(scribe_.pipeline, sink)):
            if PartitionRow.load(text, row_key).state is PartitionState.PENDING:
                raise ConfigurationError(f"sink {sink!r} was removed, but is half delivered")


def nobody_joined(self: open_verb.Minibatches, *_: Any) -> frozenset[str]:
    return frozenset()


class StopsTheStream(resend_attempt.Unsendable):
    """Lets what is wrong with one parked event stop everything."""

    def __init__(self, why: str) -> None:
        raise Diverged(why)


def never_in_vain(self: resend_attempt.Again, claimed: Any) -> bool:
    return False


def a_second_sink(variant: Variant) -> Callable[[SimulatedWorld], bool]:
    return lambda world: len(world.cases) > 1 and world.cases[1].variant is variant


def poisoned(capability: Capability) -> Callable[[SimulatedWorld], bool]:
    """Worlds in which two refused events break whoever sends them again."""
    return lambda world: (
        world.case.capability is capability and len(world.cluster.destination.poison) > 1
    )


def turned_away(variant: Variant) -> Callable[[SimulatedWorld], bool]:
    """Worlds with a gateway that may refuse the repeat of what got no answer."""
    return lambda world: (
        world.case.variant is variant and world.cluster.destination.gateway is not None
    )


HOLD = Case(Variant.OPAQUE)
TRANSACTIONAL = Case(Variant.TRANSACTIONAL, identities=Identities.POSITION)
SEQUENCED = Case(Variant.SEQUENCED, identities=Identities.GIVEN)
PROBING = Case(Variant.PROBING)
CHUNKS = Case(Variant.REPEATABLE_CHUNKS)
ONE_REFUSED = frozenset({5})


@dataclass(frozen=True)
class Bug:
    name: str
    plant: Plant
    hunt: Hunt


def stops_in_order(world: SimulatedWorld) -> bool:
    return world.runner.stops is not None


BUGS = [
    Bug(
        "an open span of an opaque sink is repeated",
        row(Found.INTENDED, Capability.OPAQUE, Action.REPEAT),
        every_crash(HOLD),
    ),
    Bug(
        "a settled span is sent again",
        row(Found.SETTLED, Capability.OPAQUE, Action.REPEAT),
        every_crash(HOLD),
    ),
    Bug(
        "an open span of a probing sink is not asked for",
        row(Found.INTENDED, Capability.PROBING, Action.REPEAT),
        every_crash(PROBING),
    ),
    Bug(
        "an open span of a repeatable sink is skipped",
        row(Found.INTENDED, Capability.REPEATABLE, Action.SKIP),
        every_crash(CHUNKS),
    ),
    Bug(
        "a pending partition is taken for a new one",
        row(Found.PENDING, Capability.OPAQUE, Action.DELIVER),
        every_crash(HOLD),
    ),
    Bug(
        "a complete partition is delivered",
        row(Found.COMPLETE, Capability.OPAQUE, Action.DELIVER),
        every_crash(HOLD),
    ),
    Bug(
        "what may have arrived is sent under policy hold",
        partial(flipped, DOUBT, OnDoubt.HOLD, DOUBT[OnDoubt.RESEND]),
        every_crash(HOLD),
    ),
    Bug(
        "the intent follows the effect",
        partial(replaced, intent.IntentStrategy, "_deliver", effect_before_intent),
        every_crash(HOLD),
    ),
    Bug(
        "a take-over fences nobody",
        partial(replaced, partitions.PartitionClaim, "_seize", without_fence),
        every_crash(HOLD),
    ),
    Bug(
        "a fenced attempt goes on",
        partial(replaced, partitions.PartitionClaim, "write", swallows_the_fence),
        every_zombie(HOLD),
    ),
    Bug("open is not required", open_not_required, random_worlds()),
    Bug(
        "a recorded span is cut anew",
        partial(replaced, intent.IntentStrategy, "_read_spans", cut_anew),
        random_worlds(lambda world: world.case.variant is Variant.REPEATABLE_CHUNKS),
    ),
    Bug(
        "the progress row is written apart",
        partial(replaced, stateful_destinations.DatabaseSession, "deliver_with", progress_apart),
        every_crash(TRANSACTIONAL),
    ),
    Bug(
        "progress passes before parking",
        progress_before_parking,
        every_crash(TRANSACTIONAL, ONE_REFUSED),
    ),
    Bug(
        "an event is settled and not parked",
        partial(replaced, partitions.PartitionClaim, "write", settles_without_parks),
        every_crash(HOLD),
    ),
    Bug(
        "a held event does not block its entity",
        partial(replaced, in_doubt, "parked_row", partial(never_blocks, parking.parked_row)),
        every_crash(HOLD),
    ),
    Bug(
        "followers are not parked",
        partial(replaced, parking.PartitionParking, "blocked", nobody_waits),
        every_crash(HOLD),
    ),
    Bug(
        "a head that moved is taken for free",
        partial(replaced, parking.PartitionParking, "reread_heads", the_head_is_gone),
        this_test(test_heads.test_a_head_that_only_moved_is_parked_behind),
    ),
    Bug(
        "parked events are sent in any order",
        partial(replaced, resend, "next_parked", last_come_first_sent),
        every_crash(HOLD),
    ),
    Bug(
        "a generation is closed without fencing",
        partial(replaced, generations, "_taken", takes_nothing_over),
        this_test(
            test_generations.test_open_is_rewritten_then_the_ledger_and_the_destination_taken_over_then_asked,
            kind="transactional",
        ),
    ),
    Bug(
        "a watermark moves over what was only intended",
        partial(replaced, close_generation.Closing, "_open_span", all_of_it_is_done),
        this_test(
            test_generations.test_a_crash_at_any_call_and_then_a_lost_checkpoint_neither_lose_nor_repeat,
            kind="repeatable",
            identity="given",
            on_reject=OnReject.PARK,
        ),
    ),
    Bug(
        "a take-over does not wait",
        partial(replaced, in_doubt.Doubts, "wait_out_the_attempt_before", acts_at_once),
        every_crash(PROBING),
    ),
    Bug(
        "a lease counts from the reply",
        partial(replaced, partitions.PartitionClaim, "claim", lease_from_the_reply),
        this_test(test_leases.test_the_lease_counts_from_before_the_ledger_was_asked),
    ),
    Bug(
        "rows are swept while they can be replayed",
        partial(replaced, open_verb, "_swept", sweeps_what_it_opens),
        every_crash(HOLD),
    ),
    Bug("a lost reply is taken for a failure", unknown_taken_for_failed, every_crash(PROBING)),
    Bug(
        "the end of the input is taken for completeness",
        partial(replaced, SinkDelivery, "finish", completed_by_the_task),
        every_crash(HOLD),
    ),
    Bug(
        "unknown is taken for failed",
        partial(replaced, in_doubt.Doubts, "judge", live_doubts_are_failures),
        every_crash(HOLD),
    ),
    Bug(
        "output sequence numbers stand still",
        partial(replaced, complete.SequenceRow, "moved", stands_still),
        every_crash(SEQUENCED),
    ),
    Bug(
        "output sequence numbers stand still after a rescale",
        partial(replaced, complete.SequenceRow, "moved", stands_still_once_rescaled),
        random_worlds(
            lambda world: world.case.capability is Capability.OPAQUE and world.changes.rescales > 0
        ),
    ),
    Bug(
        "a minibatch is completed from any report",
        partial(replaced, complete, "_matching", any_report_will_do),
        this_ledger_test(
            test_complete.test_a_sink_that_reports_nothing_of_what_it_claimed_stops_the_minibatch
        ),
    ),
    Bug(
        "the journal is compacted too far",
        partial(replaced, journal, "_droppable", drops_everything),
        this_ledger_test(
            test_journal.test_compaction_keeps_two_restorable_points_and_every_minibatch_not_swept
        ),
    ),
    Bug(
        "other content under a recorded identity goes unnoticed",
        partial(replaced, Buffer, "digest_to", digest_of_nothing),
        this_test(
            test_partitions.test_other_content_under_an_opaque_span_is_diverged_before_it_is_judged
        ),
    ),
    Bug(
        "a refusal after a lost reply is believed, and the halves go out under new keys",
        refusals_are_believed,
        every_crash(CHUNKS, shut_s=3.0),
    ),
    Bug(
        "a refusal after a lost reply is believed, by chunk",
        refusals_are_believed,
        random_worlds(turned_away(Variant.REPEATABLE_CHUNKS)),
    ),
    Bug(
        "a refusal after a lost reply is believed, by event",
        refusals_are_believed,
        random_worlds(turned_away(Variant.REPEATABLE)),
    ),
    Bug(
        "a sink that is not concluded is left out",
        partial(replaced, open_checks, "left_out", only_pending_is_open),
        random_worlds(a_second_sink(Variant.PLACES)),
    ),
    Bug(
        "a sink that is added while a complete minibatch is replayed is taken for a divergence",
        partial(replaced, open_verb.Minibatches, "_joined", nobody_joined),
        random_worlds(lambda world: world.changes.joins is not None),
    ),
    Bug(
        "a parked event that cannot be sent any more stops the stream",
        partial(replaced, resend_attempt, "Unsendable", StopsTheStream),
        random_worlds(lambda world: world.changes.releases and bool(world.refused)),
    ),
    Bug(
        "a resend that nobody answers for keeps its place for ever",
        partial(replaced, resend_attempt.Again, "in_vain", never_in_vain),
        random_worlds(poisoned(Capability.TRANSACTIONAL)),
    ),
    Bug(
        "a stop ends an attempt before what it sent is settled",
        partial(replaced, partitions.PartitionClaim, "_end_here", ends_before_it_settles),
        random_worlds(stops_in_order),
    ),
    Bug(
        "a take-over is taken for a request to stop",
        partial(replaced, open_verb.OpenMinibatch, "asked_to_stop", any_other_row_is_a_stop),
        random_worlds(stops_in_order),
    ),
    Bug(
        "a resender does not ask what became of the one before",
        resenders_do_not_ask,
        random_worlds(lambda world: world.case.capability is Capability.OPAQUE),
    ),
]


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_found(bug: Bug) -> None:
    with bug.plant():
        assert bug.hunt(), f"nobody noticed that {bug.name}"


def test_at_least_twenty_bugs_are_planted() -> None:
    assert len(BUGS) >= 20


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_gone_when_it_was_found(bug: Bug) -> None:
    right = [dict(RESUME), dict(DOUBT), partitions.PartitionClaim.write, SinkDelivery.finish]
    with bug.plant():
        pass
    assert right == [
        dict(RESUME),
        dict(DOUBT),
        partitions.PartitionClaim.write,
        SinkDelivery.finish,
    ]
