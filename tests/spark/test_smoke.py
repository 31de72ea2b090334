"""Three micro-batches through `semel.deliver`, seen by a witness outside."""

from __future__ import annotations

import pytest

from semel.protocol import Capability
from spark.driving import Bed, assert_once, assert_ordered


@pytest.mark.parametrize("capability", [each.value for each in Capability])
def test_three_minibatches_are_delivered_once(bed: Bed, capability: str) -> None:
    bed.payments(files=3, rows=10)
    bed.run(bed.settings(sink=capability))
    assert_once(bed.house.charges(), bed.expected)
    assert_ordered(bed.house.charges())
    assert all(call.events == call.effects for call in bed.house.calls())
