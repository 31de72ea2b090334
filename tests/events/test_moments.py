"""The text of a date or a timestamp names the moment that the column holds, whatever its year."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.events.encoding import moments

FORM = re.compile(r"(-?\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d+))?(Z|[+-]\d{4})?)?")
ZONES = [None, "UTC", "Europe/Berlin", "America/New_York", "+14:00", "-03:30"]
EXTREMES = [-(2**63), 2**63 - 1, -1, 0, 1]
WORDS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EXTREMES)
YEARS = st.integers(-40_000, 40_000)


def read(text: str, per_second: int) -> int:
    """What a text says, in units since 1970 in UTC; of a date the days."""
    found = FORM.fullmatch(text)
    assert found is not None, text
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    if found[4] is None:
        return days
    seconds = days * 86_400 + int(found[4]) * 3600 + int(found[5]) * 60 + int(found[6])
    if found[8] not in (None, "Z"):
        sign = 1 if found[8][0] == "+" else -1
        seconds -= sign * (int(found[8][1:3]) * 3600 + int(found[8][3:]) * 60)
    fraction = (found[7] or "").ljust(9, "0")[: len(str(per_second)) - 1] or "0"
    return seconds * per_second + int(fraction)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.none() | WORDS | YEARS, max_size=5),
    st.sampled_from(sorted(moments.PER_SECOND)),
    st.sampled_from(ZONES),
    st.integers(0, 2),
)
def test_the_text_of_any_timestamp_names_its_moment(
    given_: list[int | None], unit: str, zone: str | None, start: int
) -> None:
    per_second = moments.PER_SECOND[unit]
    year = 31_556_952 * per_second
    numbers = [
        each if each is None or abs(each) > 40_000 else max(min(each * year, 2**63 - 1), -(2**63))
        for each in given_
    ]
    array = pa.array(numbers, pa.int64()).cast(pa.timestamp(unit, zone)).slice(start)
    found = moments.moment_texts(array).to_pylist()
    assert [each if each is None else read(each, per_second) for each in found] == numbers[start:]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1) | YEARS.map(lambda y: y * 365)))
def test_the_text_of_any_date_names_its_day(days: list[int | None]) -> None:
    array = pa.array(days, pa.int32()).cast(pa.date32())
    found = moments.moment_texts(array).to_pylist()
    assert [each if each is None else read(each, 1) for each in found] == days


@pytest.mark.parametrize("zone", ZONES)
def test_a_column_that_arrow_writes_rightly_is_left_to_arrow(zone: str | None) -> None:
    seconds = np.arange(94_694_400, 4_000_000_000, 86_400_000)
    array = pa.array(seconds).cast(pa.timestamp("s", zone))
    assert moments.unwritable_moments(array) is None
    assert moments.moment_texts(array).equals(array.cast(pa.large_string()))
