"""A start that is refused leaves no pipeline and no sink behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.errors import ConfigurationError
from semel.ledger import Ledger, open_store
from support.destinations import Post
from support.pipeline import GIVEN, World


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[World]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/ledger.db"
    else:
        url = request.getfixturevalue("postgres_url")
    store = open_store(url)
    made = World(GIVEN)
    made.store.memory = store  # type: ignore[assignment]
    made.add(Post())
    yield made
    store.close()


def test_a_refused_start_is_not_listed_as_a_pipeline(world: World) -> None:
    world.start()
    world.driver.beat()  # as its heartbeat does meanwhile
    with pytest.raises(ConfigurationError, match="the ledger does not know this pipeline"):
        world.driver.begin("q", 7)
    world.driver.withdraw()
    assert Ledger(world.store).pipelines() == []
    assert Ledger(world.store).rows("owners") == []
    world.driver.withdraw()  # may be repeated
    world.start()
    world.minibatch(0, "a1 b2")
    assert world.out.calls == [["a1"], ["b2"]]


def test_a_run_that_opened_something_is_not_taken_back(world: World) -> None:
    world.start()
    world.minibatch(0, "a1")
    world.driver.withdraw()
    assert Ledger(world.store).pipelines() == ["pay"]
    world.start()  # a later run, which opened nothing yet
    world.driver.withdraw()
    assert Ledger(world.store).pipelines() == ["pay"]
    world.minibatch(1, "a1 a2")


def test_a_later_start_with_a_further_sink_leaves_no_sink_behind(world: World) -> None:
    world.start()
    world.minibatch(0, "a1")
    world.add(Post(), "second")
    world.start()
    assert Ledger(world.store).sinks("pay") == ["out", "second"]
    world.driver.withdraw()
    assert Ledger(world.store).sinks("pay") == ["out"]


def test_a_finished_batch_is_never_taken_back(world: World) -> None:
    world.start()
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, "a1"))
    world.driver.finish(opening)
    world.driver.withdraw()
    assert Ledger(world.store).summary("pay").finished


def test_a_start_that_was_replaced_takes_nothing_back(world: World) -> None:
    first = world.start()
    world.start()
    first.withdraw()
    assert Ledger(world.store).pipelines() == ["pay"]
