"""Whoever sent an event in can ask for its outcome, or wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel.errors import Rejected
from semel.events import Event, Given, Identity
from semel.ledger import INBOX_TABLE, Ledger, open_store
from semel.ledger.store import Key, Payload, Store
from semel.operate import Outcomes
from semel.runtime import SystemClock
from semel.streams import Inbox, NewEvent
from support.inbox_pipeline import GIVEN, POSITION, InboxPipeline
from support.ingress import NDJSON, Ingress

CLOCK = SystemClock()
OTHER = Given(entity="subject", event=("id",))


def states(outcomes: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(each["pipeline"], each["sink"], each["state"]) for each in outcomes]


def asked(ingress: Ingress, entity: str, event: int) -> list[tuple[str, str, str]]:
    answer = ingress.get(f"/v1/events/{entity}/{event}")
    assert answer.status == 200, answer.body
    assert (answer.json["entity"], answer.json["event"]) == (entity, event)
    return states(answer.json["outcomes"])


@pytest.mark.rows("S22")
@pytest.mark.parametrize("identity", [GIVEN, POSITION], ids=["given", "position"])
def test_the_outcome_of_an_event_is_answered_by_its_ids(
    start: Callable[..., Ingress], identity: Identity
) -> None:
    ingress = start()
    assert ingress.post("1\n2", NDJSON, Semel_Entity="42").events
    assert asked(ingress, "42", 1) == [], "no pipeline reads the stream yet"
    with closing(InboxPipeline(ingress.ledger, identity=identity)) as pipeline:
        pipeline.deliver()
        assert ingress.post("3", Semel_Entity="42").events == [("42", 3, False)]
        for event in (1, 2):
            [(name, sink, state)] = asked(ingress, "42", event)
            assert (name, sink) == ("charges", "charge")
            assert state in ("delivered", "handled")
        assert asked(ingress, "42", 3) == [("charges", "charge", "not seen")]
        pipeline.deliver()
        assert asked(ingress, "42", 3)[0][2] in ("delivered", "handled")
    ingress.get("/v1/events/42/4").problem(404)


@pytest.mark.rows("S22")
def test_an_entity_with_slashes_and_spaces_is_asked_for_like_any_other(
    start: Callable[..., Ingress],
) -> None:
    ingress = start()
    assert ingress.post("1", Semel_Entity="shop/7/a b").events == [("shop/7/a b", 1, False)]
    answer = ingress.request("GET", "/v1/events/shop%2F7%2Fa%20b/1")
    assert (answer.status, answer.json["entity"]) == (200, "shop/7/a b")
    ingress.request("GET", "/v1/events/shop%2F7/1").problem(404)


def refuses(event: Event) -> None:
    if event.value["value"] == b"13":
        raise Rejected("unlucky")


@pytest.mark.rows("S22")
def test_an_event_that_a_sink_rejected_is_parked_and_not_delivered(
    start: Callable[..., Ingress],
) -> None:
    ingress = start()
    assert ingress.post("13", Semel_Entity="a").events
    assert ingress.post("14", Semel_Entity="b").events
    with closing(InboxPipeline(ingress.ledger, identity=GIVEN, take=refuses)) as pipeline:
        pipeline.deliver()
    assert asked(ingress, "a", 1) == [("charges", "charge", "parked")]
    assert asked(ingress, "b", 1)[0][2] in ("delivered", "handled")


@pytest.mark.rows("S22")
def test_a_post_waits_for_the_outcome_while_others_are_served(
    start: Callable[..., Ingress],
) -> None:
    ingress = start()
    with closing(InboxPipeline(ingress.ledger, identity=GIVEN)) as pipeline:
        pipeline.deliver()
        answers: list[Any] = []

        def wait() -> None:
            answers.append(ingress.post("1\n2", NDJSON, Semel_Entity="w", Prefer="wait=20"))

        thread = threading.Thread(target=wait)
        thread.start()
        CLOCK.sleep(0.3)
        assert ingress.post("1", Semel_Entity="others").events, "others are served"
        assert not answers
        pipeline.deliver()
        thread.join()
    [answer] = answers
    assert answer.events == [("w", 1, False), ("w", 2, False)]
    assert answer.headers["preference-applied"] == "wait=20"
    for each in answer.json["events"]:
        [(_, _, state)] = states(each["outcomes"])
        assert state in ("delivered", "handled")


@pytest.mark.rows("S22")
def test_a_wait_ends_with_its_time_and_says_what_is_known(start: Callable[..., Ingress]) -> None:
    ingress = start()
    with closing(InboxPipeline(ingress.ledger, identity=GIVEN)) as pipeline:
        pipeline.deliver()
    began = CLOCK.monotonic()
    answer = ingress.post("1", Semel_Entity="w", Prefer="respond-async, wait=1")
    assert 0.9 < CLOCK.monotonic() - began < 10
    assert answer.headers["preference-applied"] == "wait=1"
    [event] = answer.json["events"]
    assert states(event["outcomes"]) == [("charges", "charge", "not seen")]
    many = ingress.post("1\n" * 101, NDJSON, Semel_Entity="w", Prefer="wait=60")
    assert many.status == 201
    assert "preference-applied" not in many.headers, "it is a preference, and bounded"


@pytest.mark.rows("S22")
def test_what_the_ledger_does_not_show_is_unknown(start: Callable[..., Ingress]) -> None:
    ingress = start("--pipeline", "charges")
    ledger = ingress.ledger
    assert ingress.post("1", Semel_Entity="a").events
    ingress.get("/v1/events/a/1").problem(500)
    with closing(InboxPipeline(ledger, identity=OTHER)):
        [(_, _, state)] = asked(ingress, "a", 1)
        assert state == "unknown", "its events have another identity"
    with closing(InboxPipeline(ledger, name="others", identity=GIVEN)):
        pass
    both = start(stream="returns", ledger=ledger)
    assert both.post("1", Semel_Entity="a").events
    assert asked(both, "a", 1) == [("others", "charge", "unknown")], "of two streams"


class PrunedMeanwhile:
    """A store in which another process prunes just before groups of events are read."""

    def __init__(self, store: Store, prune: Callable[[], object]) -> None:
        self._store = store
        self._prune: Callable[[], object] | None = prune
        self.read, self.commit, self.close = store.read, store.commit, store.close

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        if table == INBOX_TABLE and self._prune is not None:
            prune, self._prune = self._prune, None
            prune()
        return self._store.scan(table, prefix, after=after, limit=limit)


@pytest.mark.rows("S22")
def test_events_that_are_pruned_while_one_is_searched_do_not_hide_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with Inbox(url, "orders", partitions=1) as inbox:
        for number in range(5):
            inbox.append([NewEvent(b"%d" % number, entity=f"e{number}")])
        with closing(InboxPipeline(url, identity=POSITION)) as pipeline:
            pipeline.deliver()
        inbox.register_reader("charges")
        inbox.reader_completed("charges", {0: 3})
        store = PrunedMeanwhile(open_store(url), lambda: inbox.prune(keep_s=0))
        with closing(store):
            found = Outcomes(Ledger(store), "orders")
            [outcome] = found.find("e3", 1)
        assert inbox.layout()[0].begin == 3
    assert outcome.trace.state in ("delivered", "handled")
