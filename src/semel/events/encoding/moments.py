"""Dates and timestamps as text, including those that Arrow would format as another moment.

Always true:
- Arrow can format the years -32767 to 32767. Beyond them it wraps a timestamp with a zone into
  another year, and returns `<value out of range>` for any other value: NumPy formats those, in UTC;
- Arrow cuts the seconds off an offset (Berlin was at +0053:28 until 1893): such a moment is
  formatted in UTC too;
- a column that holds neither is formatted by Arrow, after a check of its bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

FIRST_DAY = -12_687_426
LAST_DAY = 11_248_735
"""Two days within the years -32767 and 32767, in days since 1970: no zone leads out of them."""

_WHOLE_MINUTES_S = 94_694_400
"""Since 1973 every zone is whole minutes away from UTC; Liberia was the last, in January 1972."""

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400


def moment_texts(array: pa.Array) -> pa.Array:
    """Return the text of each date or timestamp: `2026-03-29`, `2026-03-29 01:30:00+0100`.

    A value that Arrow cannot format correctly is in UTC, with a Z if the column has a zone.
    """
    wrong = unwritable_moments(array)
    if wrong is None:
        return array.cast(pa.large_string())
    kind, at = array.type, pa.array(wrong)
    theirs = pc.if_else(at, pa.scalar(None, kind), array).cast(pa.large_string())
    if _is_local(kind):
        ours = moment_texts(array.filter(at).cast(pa.timestamp(kind.unit, "UTC")))
    else:
        ours = _written(_numbers(array.filter(at)).to_numpy(), kind)
    return pc.replace_with_mask(theirs, at, ours)


def unwritable_moments(array: pa.Array) -> NDArray[np.bool_] | None:
    """Return a mask of the values that Arrow would format as another moment, or not at all; None if
    there are none.
    """
    kind = array.type
    per_day = 1 if pa.types.is_date(kind) else _DAY_S * PER_SECOND[kind.unit]
    numbers = _numbers(array)
    found = pc.min_max(numbers).as_py()
    if found["min"] is None:
        return None
    first = max(FIRST_DAY * per_day, -(2**63) + 2 * per_day)  # local time must not overflow either
    last = min(LAST_DAY * per_day, 2**63 - 1 - 2 * per_day)
    beyond = found["min"] < first or found["max"] > last
    early = _is_local(kind) and found["min"] < _WHOLE_MINUTES_S * PER_SECOND[kind.unit]
    if not beyond and not early:
        return None
    plain: Integers = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    wrong: NDArray[np.bool_] = np.zeros(len(plain), np.bool_)
    if beyond:
        wrong |= (plain < first) | (plain > last)
    if early:
        wrong |= _has_seconds(array, plain, wrong)
    return wrong if wrong.any() else None


def _has_seconds(array: pa.Array, plain: Integers, beyond: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the moments at which the zone's offset from UTC is not whole minutes."""
    kind = array.type
    inside = pa.array(np.where(beyond, 0, plain)).cast(kind)
    local = pc.local_timestamp(inside).cast(pa.int64()).to_numpy()
    away: Integers = local - np.where(beyond, 0, plain)
    marks: NDArray[np.bool_] = away % (60 * PER_SECOND[kind.unit]) != 0
    return marks


def _is_local(kind: pa.DataType) -> bool:
    """Return whether values are formatted in a zone other than UTC."""
    return bool(pa.types.is_timestamp(kind) and kind.tz not in (None, "UTC"))


def _numbers(array: pa.Array) -> pa.Array:
    """Return dates as days, timestamps in their own units, since 1970 in UTC."""
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64())
    return array.cast(pa.date32(), safe=False).cast(pa.int32()).cast(pa.int64())


def _written(numbers: Integers, kind: pa.DataType) -> pa.Array:
    """Format moments with NumPy; day and time of day separately, so that none is NumPy's NaT."""
    if pa.types.is_date(kind):
        return pa.array(np.datetime_as_string(numbers.astype("datetime64[D]")), pa.large_string())
    days, rest = np.divmod(numbers, _DAY_S * PER_SECOND[kind.unit])
    dates = np.datetime_as_string(days.astype("datetime64[D]")).tolist()
    times = np.datetime_as_string(rest.astype(f"datetime64[{kind.unit}]")).tolist()
    end = "" if kind.tz is None else "Z"
    return pa.array(
        [f"{date} {time[11:]}{end}" for date, time in zip(dates, times, strict=True)],
        pa.large_string(),
    )
