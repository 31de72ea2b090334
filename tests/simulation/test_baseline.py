"""Some simulated worlds come to the end they came to before: what a move of code may not change."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from semel.ledger.verbs.partitions import PartitionClaim
from semel.protocol import Found
from support.simulation_baseline import FILE, WORLDS, played, seeds


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    log = logging.getLogger("semel")
    before, log.disabled = log.disabled, True
    yield
    log.disabled = before


def baseline() -> dict[str, dict[str, Any]]:
    kept: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return kept


def test_the_worlds_are_of_every_capability_and_identity_and_have_faults() -> None:
    kept = baseline().values()
    cases = Counter(word for each in kept for word in each["case"].split(maxsplit=1))
    capabilities = {"transactional", "sequenced", "repeatable", "probing", "opaque"}
    assert all(cases[each] >= 4 for each in capabilities), cases
    assert len(cases) > len(capabilities) + 3, cases
    assert sum(each["faults"] > 0 for each in kept) > WORLDS / 3
    assert sum(each["doubted"] > 0 for each in kept) > 3
    assert all(each["violations"] == 0 for each in kept)


def test_every_world_comes_to_the_end_it_came_to_before() -> None:
    kept = baseline()
    assert list(kept) == [str(seed) for seed in seeds()]
    for seed in seeds():
        now = json.loads(json.dumps(played(seed)))
        assert now == kept[str(seed)], f"semel simulate --replay {seed}"


def test_a_broken_ledger_comes_to_another_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionClaim, "_take_over", lambda _: Found.NEW)
    kept = baseline()
    assert any(played(seed)["got"] != kept[str(seed)]["got"] for seed in seeds())
