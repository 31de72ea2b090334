"""A packed set of ids is read as it was written, or not at all."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semel.events import EntityIds, IdSet
from semel.events.ids.packing import PACKED, pack

SEED = 20


def large(text: bool = False) -> EntityIds:
    ids: dict[str, list[Any]] = {
        f"entity-{at}": [f"id-{each}" if text else each * 3 + at for each in range(40)]
        for at in range(50)
    }
    made = EntityIds.of({scope: IdSet.of(each) for scope, each in ids.items()})
    columns = EntityIds.from_json(made.to_json())
    assert columns.columns is not None
    return columns


def packed_text(ids: EntityIds) -> str:
    written = ids.written().content.decode()
    assert written.startswith('{"packed":"')
    return written[len('{"packed":"') : -2]


@pytest.mark.parametrize("text", [False, True], ids=["integers", "texts"])
def test_no_single_bit_that_flips_gives_other_ids(text: bool) -> None:
    ids = large(text)
    packed = packed_text(ids).encode()
    random_bits = random.Random(SEED)
    places = random_bits.sample(range(len(packed) * 8), 1_500)
    for place in places:
        damaged = bytearray(packed)
        damaged[place // 8] ^= 1 << (place % 8)
        try:
            value = {PACKED: damaged.decode()}
            found = EntityIds.from_json(value)
        except ValueError:
            continue
        assert found == ids, f"seed {SEED}, bit {place}"


def test_a_set_that_is_cut_short_is_not_read() -> None:
    packed = packed_text(large())
    for length in range(0, len(packed), 17):
        with pytest.raises(ValueError, match=r"."):
            EntityIds.from_json({PACKED: packed[:length]})


def test_what_0_1_packed_without_a_checksum_is_still_read() -> None:
    ids = large()
    packed = packed_text(ids)
    assert ":" in packed
    assert EntityIds.from_json({PACKED: packed.partition(":")[2]}) == ids


def test_what_0_1_packed_and_is_not_sorted_any_more_is_not_read() -> None:
    names = pa.array(["b", "a"])
    numbers = pa.array([1, 2], pa.int64())
    made = pack(names, np.array([0, 1, 2]), numbers, numbers)
    text = made[len(b'{"packed":"') : -2].decode().partition(":")[2]
    with pytest.raises(ValueError, match="packed"):
        EntityIds.from_json({PACKED: text})


def test_what_is_packed_and_is_something_else_is_not_read() -> None:
    out = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_pydict({"other": [1, 2]})
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    for text in ("", "%%%", base64.b64encode(out.getvalue()).decode(), "QUJD", "QUJD:00000000"):
        with pytest.raises(ValueError, match="packed"):
            EntityIds.from_json({PACKED: text})
