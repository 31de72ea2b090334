"""The store of simulated worlds does what the real ones do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from semel.ledger.keys import make_key
from semel.ledger.store.commit import (
    Absent,
    Conflict,
    Delete,
    Equals,
    Put,
    Requirement,
    Sweep,
    Update,
)
from semel.ledger.store.opening import open_store
from semel.verify.simulator.cluster import MemoryStore

KEYS = [make_key("t", name) for name in ("a", "b", "ab", "é", "\U0001f600")]
PAYLOADS = ['{"n":1}', '{"n":2}']


def commits(seed: int) -> list[tuple[list[Requirement], list[Update]]]:
    chance = random.Random(seed)
    made = []
    for _ in range(60):
        updates: list[Update] = []
        requirements: list[Requirement] = []
        for each in chance.sample(KEYS, chance.randint(0, 3)):
            kind = chance.randrange(5)
            if kind == 4:
                updates.append(Delete(each))
                continue
            updates.append(Put(each, chance.choice(PAYLOADS)))
            if kind == 0:
                requirements.append(Absent(each))
            elif kind == 1:
                requirements.append(Equals(each, chance.choice(PAYLOADS)))
        if chance.random() < 0.1:
            updates.insert(0, Sweep("t", chance.choice(("a", "", "b"))))
        made.append((requirements, updates))
    return made


@pytest.mark.parametrize("seed", range(5))
def test_it_answers_every_commit_as_sqlite_does(seed: int, tmp_path: Path) -> None:
    memory, real = MemoryStore(), open_store(f"sqlite:///{tmp_path}/ledger.db")
    for requirements, updates in commits(seed):
        answers = []
        for store in (memory, real):
            try:
                store.commit(requirements, updates)
            except Conflict:
                answers.append(False)
            else:
                answers.append(True)
        assert answers[0] == answers[1]
        assert list(memory.scan("t", "")) == list(real.scan("t", ""))
        assert list(memory.scan("t", "a", after="a")) == list(real.scan("t", "a", after="a"))
        assert list(memory.scan("t", "", limit=2)) == list(real.scan("t", "", limit=2))
        assert memory.read(KEYS) == real.read(KEYS)
    real.close()


def test_absence_can_only_be_required_of_a_row_that_is_put() -> None:
    with pytest.raises(ValueError, match="does not put it"):
        MemoryStore().commit([Absent(KEYS[0])], [])
