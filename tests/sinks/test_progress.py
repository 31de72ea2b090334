"""What a destination keeps of ours comes back as it was written."""

from __future__ import annotations

import json
import pickle

import pytest

from semel.events import Attempt, EntityIds, IdSet, Minibatch
from semel.sinks import Progress, Tail

BARE = Progress(Minibatch(1, 0), Attempt(1, 2))
FULL = Progress(
    minibatch=Minibatch(3, 7),
    attempt=Attempt(2, 41),
    done=1_000,
    osn=123_456_789_012,
    digest="d1g357",
    sort_key=[7, "a", None],
    ids=EntityIds.of({"a": IdSet.of([1, 2, 9]), "b": IdSet.of(["x"]), "c": IdSet.of([(1, "y")])}),
    rejected={3: "no such card", 998: ""},
)


@pytest.mark.parametrize("progress", [BARE, FULL])
def test_progress_comes_back_as_it_was_written(progress: Progress) -> None:
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_a_later_attempt_keeps_how_far_the_minibatch_is() -> None:
    taken = FULL.taken_by(FULL.minibatch, Attempt(3, 0))
    assert taken.attempt == Attempt(3, 0)
    assert (taken.done, taken.osn, taken.digest) == (FULL.done, FULL.osn, FULL.digest)
    assert (taken.ids, taken.rejected) == (FULL.ids, FULL.rejected)


def test_a_new_minibatch_starts_from_nothing_but_its_number() -> None:
    taken = FULL.taken_by(Minibatch(3, 8), Attempt(3, 0))
    assert taken == Progress(Minibatch(3, 8), Attempt(3, 0), osn=FULL.osn)


@pytest.mark.parametrize("tail", [Tail(), Tail(9, Minibatch(1, 2), ["a", 9], FULL, resent=4)])
def test_a_tail_travels(tail: Tail) -> None:
    assert pickle.loads(pickle.dumps(tail)) == tail
