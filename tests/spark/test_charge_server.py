"""The charge server keeps the contract of each capability, and answers each call once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from semel.errors import Diverged, Fenced, NotDelivered, OutcomeUnknown, Rejected
from semel.verify.demo.charge_server import ChargeClient, ChargeServer
from semel.verify.process_group import ProcessGroup, state_of
from support.spark.driver_scripts import names, wait_for
from support.spark.faults import LEDGER_STEPS, STEPS


def charge(event: int, osn: int = 0) -> dict[str, object]:
    return {
        "entity": "a",
        "event": event,
        "osn": osn,
        "amount": 1,
        "key": f"a/{event}",
        "scope": "a",
        "sort_key": ["a", event],
    }


def body(*events: int, attempt: tuple[int, int] = (1, 1), **more: object) -> dict[str, object]:
    return {
        "pipeline": "p",
        "sink": "s",
        "partition": "0",
        "minibatch": [1, 0],
        "attempt": list(attempt),
        "charges": [charge(event, event) for event in events],
        **more,
    }


def progress(start: int, done: int, attempt: tuple[int, int]) -> dict[str, object]:
    return {
        "minibatch": [1, 0],
        "attempt": list(attempt),
        "done": done,
        "start": start,
        "osn": done,
        "digest": "",
        "sort_key": None,
        "ids": {},
        "rejected": {},
        "rejected_events": {},
    }


def events_of(house: ChargeServer) -> list[object]:
    return [event for _, event in names(house.charges())]


@pytest.mark.parametrize(
    ("trouble", "raised", "charged"),
    [
        ("away", NotDelivered, 1),
        ("reject", Rejected, 1),
        ("error", OutcomeUnknown, 2),
        ("lost", OutcomeUnknown, 2),
        ("dropped", OutcomeUnknown, 1),
    ],
)
def test_a_planned_trouble_happens_once(
    house: ChargeServer, trouble: str, raised: type[Exception], charged: int
) -> None:
    house.plan(trouble, event=7)
    charge_client = ChargeClient(house.url)
    charge_client.ask("/charge", body(1))
    with pytest.raises(raised):
        charge_client.ask("/charge", body(7))
    assert len(house.charges()) == charged
    charge_client.ask("/charge", body(7))
    charge_client.close()


def test_a_late_charge_counts_although_nobody_waits(house: ChargeServer) -> None:
    house.plan("late", seconds=0.3)
    hasty = ChargeClient(house.url, timeout_s=0.05)
    with pytest.raises(OutcomeUnknown):
        hasty.ask("/charge", body(1))
    assert house.charges() == []
    wait_for(house.charges)


def test_a_word_is_told_to_exactly_as_many_as_it_was_armed_for(house: ChargeServer) -> None:
    house.arm("x", "stop", times=2, after=3)
    told: list[str | None] = []

    def ask() -> None:
        charge_client = ChargeClient(house.url)
        told.extend(charge_client.token("x") for _ in range(5))
        charge_client.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told, key=str) == [None] * 18 + ["stop"] * 2
    assert [taken.pid for taken in house.taken("x")] == [os.getpid()] * 2
    assert house.asked() == {"x": 20}


def test_a_token_can_be_asked_for_with_any_client(house: ChargeServer) -> None:
    house.arm("y")
    answers = [urllib.request.urlopen(f"{house.url}/token/y").read() for _ in range(2)]
    assert answers == [b'"kill"', b"null"]


def test_a_repeat_is_absorbed_by_its_key(house: ChargeServer) -> None:
    charge_client = ChargeClient(house.url)
    assert charge_client.ask("/absorb", body(1, 2)) == {"repeats": 0}
    assert charge_client.ask("/absorb", body(2, 3)) == {"repeats": 1}
    assert charge_client.ask("/absorb", body(4, 5, key="chunk")) == {"repeats": 0}
    assert charge_client.ask("/absorb", body(4, 5, key="chunk")) == {"repeats": 2}
    charge_client.close()
    assert events_of(house) == [1, 2, 3, 4, 5]
    assert [(call.events, call.effects) for call in house.calls()] == [
        (2, 2),
        (2, 1),
        (2, 2),
        (2, 0),
    ]


def test_a_row_is_moved_by_the_latest_attempt_only(house: ChargeServer) -> None:
    charge_client = ChargeClient(house.url)
    assert charge_client.ask("/row/take", body()) is None
    charge_client.ask("/row/deliver", body(1, progress=progress(0, 1, (1, 1)), after=0))
    with pytest.raises(Fenced, match="stands at 1"):
        charge_client.ask("/row/deliver", body(1, progress=progress(0, 1, (1, 1)), after=0))
    stood = charge_client.ask("/row/take", body(attempt=(1, 2)))
    assert (stood["done"], stood["attempt"]) == (1, [1, 1])
    with pytest.raises(Fenced, match=r"attempt 1\.2"):
        charge_client.ask("/row/deliver", body(2, progress=progress(1, 2, (1, 1)), after=1))
    charge_client.close()
    assert events_of(house) == [1]


@pytest.mark.parametrize(("taken", "after"), [(False, 1), (True, 1), (True, 3)])
def test_a_row_that_is_behind_what_was_acknowledged_is_told(
    house: ChargeServer, taken: bool, after: int
) -> None:
    charge_client = ChargeClient(house.url)
    if taken:
        charge_client.ask("/row/take", body())
    start = after - 1
    if start:
        charge_client.ask("/row/deliver", body(1, 2, progress=progress(0, start, (1, 1)), after=0))
    further = progress(start, start + 1, (1, 1))
    with pytest.raises(Diverged, match=f"{after} is the last output"):
        charge_client.ask("/row/deliver", body(4, progress=further, after=after))
    charge_client.ask("/row/deliver", body(4, progress=further, after=start))
    charge_client.close()
    assert events_of(house) == ([1, 2, 4] if start else [4])


def test_a_log_refuses_a_replaced_writer_and_tells_its_tail(house: ChargeServer) -> None:
    charge_client = ChargeClient(house.url)
    assert charge_client.ask("/log/take", body())["osn"] == 0
    stamp = progress(0, 2, (1, 1))
    charge_client.ask("/log/append", body(1, 2, progress=stamp, resend=0))
    with pytest.raises(Fenced, match="stands at 2"):
        charge_client.ask("/log/append", body(2, progress=stamp, resend=0))
    tail = charge_client.ask("/log/take", body(attempt=(1, 2)))
    assert (tail["osn"], tail["sort_key"], tail["stamp"]) == (2, ["a", 2], stamp)
    with pytest.raises(Fenced, match="epoch"):
        charge_client.ask("/log/append", body(3, progress=stamp, resend=0))
    charge_client.ask("/log/append", body(1, attempt=(1, 2), progress=None, resend=1))
    assert charge_client.ask("/log/take", body(attempt=(1, 2)))["resent"] == 1
    assert charge_client.ask("/log/ids", body()) == [["a", 1], ["a", 2], ["a", 1]]
    charge_client.close()


def test_a_chunk_can_be_asked_for(house: ChargeServer) -> None:
    charge_client = ChargeClient(house.url)
    assert charge_client.ask("/arrived", {"key": "k"}) is False
    charge_client.ask("/chunk", body(1, key="k"))
    assert charge_client.ask("/arrived", {"key": "k"}) is True
    charge_client.close()


def test_every_step_has_one_name() -> None:
    assert len(set(STEPS)) == len(STEPS)
    assert {"register.before", "complete.after", "effect.after"} <= set(STEPS)
    assert set(LEDGER_STEPS) < set(STEPS)


_STARTER = """
import sys, time
from semel.verify.demo.charge_server import ChargeServer
from semel.verify.process_group import ProcessGroup
from pathlib import Path
house, home = ChargeServer(), ProcessGroup("orphans")
home.start(["sh", "-c", "setsid sleep 300 & sleep 300"], {}, home.folder / "log")
print(house.pid, *home.members(), home.folder, flush=True)
time.sleep(300)
"""


def test_server_and_group_end_with_whoever_started_them() -> None:
    with subprocess.Popen([sys.executable, "-c", _STARTER], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        *pids, folder = starter.stdout.readline().decode().split()
        starter.kill()
    wait_for(lambda: all(state_of(int(pid)) in ("", "Z") for pid in pids))
    wait_for(lambda: not Path(folder).exists())


def test_a_stopped_member_of_a_group_ends_too() -> None:
    with ProcessGroup("sleepers") as group:
        process = group.start(["sleep", "300"], {}, group.folder / "log")
        until = time.monotonic() + 10
        while not group.members() and time.monotonic() < until:
            time.sleep(0.01)  # it is not a member before it has begun
        process.send_signal(signal.SIGSTOP)
        assert group.members() == [process.pid]
        group.end()
        assert group.members() == []
        group.start(["sleep", "300"], {}, group.folder / "log")
    assert not group.folder.exists()
