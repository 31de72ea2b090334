"""How long to try again: each pause within its bounds, all of them adding up to the patience."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigurationError
from semel.sinks import Retry


@given(
    st.floats(0.01, 2.0),
    st.floats(0.5, 20.0),
    st.floats(0.0, 120.0),
    st.integers(0, 2**32),
)
def test_pauses_stay_within_their_bounds_and_add_up(
    first_s: float, most_s: float, for_s: float, seed: int
) -> None:
    retry = Retry(first_s, max(first_s, most_s), for_s)
    pauses = list(retry.pauses(Random(seed)))
    assert sum(pauses) == pytest.approx(for_s)
    step = first_s
    for at, pause in enumerate(pauses):
        assert pause <= step + 1e-9
        assert pause >= step / 2 - 1e-9 or at == len(pauses) - 1
        step = min(step * 2, retry.most_s)


def test_pauses_grow_and_are_jittered() -> None:
    retry = Retry(first_s=1.0, most_s=8.0, for_s=1_000.0)
    one, other = (list(islice(retry.pauses(Random(seed)), 6)) for seed in (1, 2))
    assert one != other
    for pauses in (one, other):
        for pause, step in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True):
            assert step / 2 <= pause <= step


def test_no_patience_means_no_pause() -> None:
    assert list(Retry(for_s=0.0).pauses(Random(1))) == []


def test_the_first_try_waits_for_nothing_and_each_later_one_for_a_pause() -> None:
    retry = Retry()
    assert list(retry.waits(Random(3))) == [0.0, *retry.pauses(Random(3))]


def test_a_pause_is_drawn_only_when_it_is_needed() -> None:
    random = Random(3)
    before = random.getstate()
    assert next(Retry(for_s=float("inf")).waits(random)) == 0.0
    assert random.getstate() == before


@pytest.mark.parametrize("words", [{"first_s": 0.0}, {"first_s": -1.0}, {"most_s": 0.0}])
def test_pauses_that_would_never_add_up_are_refused(words: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="must be greater than 0"):
        Retry(**words)


def test_the_same_chance_gives_the_same_pauses() -> None:
    assert list(Retry().pauses(Random(3))) == list(Retry().pauses(Random(3)))
