"""An ingress that is killed, stopped, or shares its stream with another one loses nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.runtime import SystemClock
from support.ingress import (
    CLOUD_EVENT,
    NDJSON,
    Ingress,
    IngressAnswer,
    cloud_event,
    receive_all,
    rows_of,
)
from support.ingress_soak import Soak

EVENTS, KILLS = (200_000, 20) if os.environ.get("SEMEL_SOAK") else (10_000, 4)
CLOCK = SystemClock()


@pytest.mark.rows("S1", "S2", "S3", "S17")
def test_what_was_acknowledged_is_there_once_and_numbered_without_gaps_after_kills(
    tmp_path: Path,
) -> None:
    soak = Soak(f"sqlite:///{tmp_path / 'soak.db'}", EVENTS, KILLS)
    soak.run()
    print(f"{dict(soak.seen)} in {soak.seconds:.1f} s")  # noqa: T201 - with the seed
    assert soak.seen["killed"] == KILLS


@pytest.mark.rows("S2", "S3")
def test_two_ingress_processes_of_a_postgres_ledger_number_the_events_of_one_entity(
    start: Callable[..., Ingress], postgres_url: str
) -> None:
    both = [start(ledger=postgres_url) for _ in range(2)]
    answers: list[tuple[str, int, bool]] = []

    def send(ingress: Ingress) -> None:
        for _ in range(20):
            answers.extend(ingress.post("1\n2\n3", NDJSON, Semel_Entity="one").events)

    threads = [threading.Thread(target=send, args=(each,)) for each in both * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(event for _, event, _ in answers) == list(range(1, 241))
    assert [row["event"] for row in rows_of(both[0])] == list(range(1, 241))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_commits_and_answers_what_was_accepted_and_exits_with_0(
    start: Callable[..., Ingress], how: signal.Signals
) -> None:
    ingress = start()
    answered: list[int] = []
    refused: list[int] = []

    def send(number: int) -> None:
        count = 0
        try:
            while True:
                count += 1
                answer = ingress.post(cloud_event(f"{number}-{count}", count, "one"), CLOUD_EVENT)
                (answered if answer.status == 201 else refused).append(answer.status)
        except OSError:
            return

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    CLOCK.sleep(0.5)
    assert ingress.stop(how) == 0
    for thread in threads:
        thread.join()
    assert len(answered) >= 4
    assert set(refused) <= {503}
    stored = rows_of(ingress)
    assert len(stored) == len(answered), "each event that was stored was acknowledged"
    assert [row["event"] for row in stored] == list(range(1, len(stored) + 1))
    assert "Traceback" not in "".join(ingress.err)


def test_a_stop_answers_who_waits_for_an_outcome(start: Callable[..., Ingress]) -> None:
    ingress = start()
    answers: list[IngressAnswer] = []

    def wait() -> None:
        answers.append(ingress.post("1", Semel_Entity="w", Prefer="wait=60"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not rows_of(ingress):
        CLOCK.sleep(0.05)
    CLOCK.sleep(0.2)
    began = CLOCK.monotonic()
    assert ingress.stop() == 0
    waiting.join()
    assert CLOCK.monotonic() - began < 20, "not the time of the wait"
    assert answers[0].events == [("w", 1, False)]
    assert answers[0].json["events"][0]["outcomes"] == []


def test_a_stop_does_not_wait_for_a_request_that_never_comes_as_a_whole(
    start: Callable[..., Ingress],
) -> None:
    ingress = start("--timeout", "1")
    with ingress.connect() as idle, ingress.connect() as half:
        half.sendall(
            b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 10\r\n\r\n1"
        )
        CLOCK.sleep(0.2)
        began = CLOCK.monotonic()
        assert ingress.stop() == 0
        assert CLOCK.monotonic() - began < 10
        assert receive_all(half).startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 503 "))
        assert receive_all(idle) == b""
    assert rows_of(ingress) == []


def test_a_stop_that_follows_the_start_at_once_exits_with_0(start: Callable[..., Ingress]) -> None:
    for _ in range(5):
        assert start().stop() == 0
