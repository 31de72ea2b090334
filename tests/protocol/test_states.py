"""Comparing C with L says what a replay suppresses, and what a destination has lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protocol import Outstanding, outstanding


@pytest.mark.rows("O11")
def test_where_c_equals_l_nothing_is_suppressed_and_nothing_is_gone() -> None:
    assert outstanding(last_complete=7, last_transmitted=7) == Outstanding(suppressed=0, gone=0)


@pytest.mark.rows("O11")
def test_where_c_is_ahead_of_l_what_is_between_them_is_suppressed() -> None:
    assert outstanding(last_complete=7, last_transmitted=10) == Outstanding(suppressed=3, gone=0)


@pytest.mark.rows("O11")
def test_where_c_is_behind_l_acknowledged_events_are_gone() -> None:
    assert outstanding(last_complete=7, last_transmitted=5) == Outstanding(suppressed=0, gone=2)


@pytest.mark.rows("O9", "O11")
@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_c_and_l_alone_say_what_is_missing(last_complete: int, last_transmitted: int) -> None:
    told = outstanding(last_complete, last_transmitted)
    assert last_complete + told.suppressed - told.gone == last_transmitted
    assert told.suppressed >= 0
    assert told.gone >= 0
    assert not (told.suppressed and told.gone)
