"""An ingress whose ledger is away answers in time, loses nothing, and goes on when it is back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from semel.errors import LedgerUnavailable
from semel.ingress.app import problem_of
from semel.runtime import SystemClock
from semel.verify.servers.postgres import PostgresServer
from support.ingress import CLOUD_EVENT, Ingress, IngressAnswer, cloud_event, rows_of

CLOCK = SystemClock()
EVENTS = 5


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL that only this test stops."""
    with closing(PostgresServer(durable=True)) as started:
        yield started


@pytest.mark.rows("S2", "S17")
def test_what_is_sent_while_the_ledger_is_away_is_stored_once_when_it_is_back(
    start: Callable[..., Ingress], server: PostgresServer
) -> None:
    ingress = start(ledger=server.url())
    assert ingress.post(cloud_event("0", 0, "one"), CLOUD_EVENT).events == [("one", 1, False)]
    answers: dict[str, IngressAnswer] = {}

    def send(id_: str) -> None:
        """As a producer does: the same request again until it is acknowledged."""
        while id_ not in answers or answers[id_].status != 201:
            answers[id_] = ingress.post(cloud_event(id_, 0, "one"), CLOUD_EVENT)
            assert answers[id_].status in (201, 503)

    senders = [threading.Thread(target=send, args=(str(n),)) for n in range(1, EVENTS)]
    server.stop()
    for sender in senders:
        sender.start()
    began = CLOCK.monotonic()
    problem = ingress.get("/healthz").problem(503)
    assert CLOCK.monotonic() - began < 10, "an orchestrator does not wait longer for a probe"
    assert "2 seconds" in problem["detail"]
    assert ingress.get("/metrics").status == 200
    assert not any(answer.status == 201 for answer in answers.values())
    server.start()
    for sender in senders:
        sender.join()
    assert ingress.get("/healthz").status == 200
    assert ingress.get("/v1/events/one/1").status == 200
    assert sorted(answer.events[0][1] for answer in answers.values()) == [2, 3, 4, 5]
    stored = rows_of(ingress)
    assert [row["event"] for row in stored] == [1, 2, 3, 4, 5]
    assert sorted(row["id"] for row in stored) == ["0", "1", "2", "3", "4"]


def test_a_commit_without_an_answer_is_a_503_that_says_to_send_it_again() -> None:
    problem = problem_of(LedgerUnavailable("postgresql://semel:secret@db does not answer"))
    assert problem is not None
    assert problem.status == 503
    assert b"send the request again with the same ids" in problem.body()
    assert (b"retry-after", b"2") in problem.headers()
    assert b"secret" not in problem.body()
