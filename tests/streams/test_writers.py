"""Several writers of one stream at once: threads, and processes that are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from semel.streams import Inbox, NewEvent
from semel.streams.append import OTHERS_S
from support import inbox_writer
from support.inbox_writer import acknowledged

WRITERS = 2
EVENTS = 400
KILLS = 5


def require_gapless(inbox: Inbox) -> dict[tuple[str, str], tuple[str, int, int, int]]:
    """Check offsets and EventIDs of a whole stream; return where each (source, id) is."""
    counted: dict[str, int] = defaultdict(int)
    found: dict[tuple[str, str], tuple[str, int, int, int]] = {}
    for part in inbox.layout():
        table = inbox.read(part.partition, 0, part.end)
        assert table["offset"].to_pylist() == list(range(part.end))
        for row in table.select(["source", "id", "entity", "event", "offset"]).to_pylist():
            counted[row["entity"]] += 1
            assert row["event"] == counted[row["entity"]]
            at = (row["source"], row["id"])
            assert at not in found, f"{at} is stored twice"
            found[at] = (row["entity"], row["event"], part.partition, row["offset"])
    return found


def start(url: str, name: str, journal: Path) -> subprocess.Popen[bytes]:
    arguments = [url, name, str(EVENTS), "20", str(journal)]
    return subprocess.Popen([sys.executable, inbox_writer.__file__, *arguments])


@pytest.mark.rows("S1", "S2", "S3")
def test_what_killed_processes_got_acknowledged_is_there_once_and_numbered_without_gaps(
    url: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - it chooses who is killed, and when
    chance = random.Random(seed)
    journals = {f"p{n}": tmp_path / f"p{n}.jsonl" for n in range(WRITERS)}
    running = {name: start(url, name, journal) for name, journal in journals.items()}
    killed = 0
    try:
        while running:
            time.sleep(chance.uniform(0.02, 0.35))
            if killed < KILLS:
                victim = chance.choice(sorted(running))
                if running[victim].poll() is None:
                    os.kill(running[victim].pid, signal.SIGKILL)
                    running[victim].wait()
                    killed += 1
                    running[victim] = start(url, victim, journals[victim])
            for name, process in [*running.items()]:
                if process.poll() is not None:
                    assert process.returncode == 0
                    del running[name]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    assert killed
    with Inbox(url, "orders") as inbox:
        found = require_gapless(inbox)
        wanted = {(name, str(number)) for name in journals for number in range(EVENTS)}
        assert found.keys() == wanted
        for name, journal in journals.items():
            for number, told in acknowledged(journal).items():
                assert found[name, str(number)] == tuple(told)
        # Counters survive the processes: the next event of each entity continues.
        counted: dict[str, int] = defaultdict(int)
        for entity, event, _, _ in found.values():
            counted[entity] = max(counted[entity], event)
        for entity, last in counted.items():
            [stored] = inbox.append([NewEvent(b"", entity=entity)])
            assert stored.event == last + 1


@pytest.mark.rows("S2")
def test_threads_of_one_inbox_share_commits_and_two_inboxes_take_turns(url: str) -> None:
    with Inbox(url, "orders") as one, Inbox(url, "orders", partitions=4) as other:

        def append(number: int) -> int:
            inbox = one if number % 2 else other
            events = [
                NewEvent(b"x", entity=f"e{(number + n) % 5}", source=str(number), id=str(n))
                for n in range(5)
            ]
            assert not any(each.repeat for each in inbox.append(events))
            return number

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(append, range(120))) == list(range(120))
        assert len(require_gapless(one)) == 600


class Sleeps:
    """A clock that moves by a millisecond whenever it is asked, and notes who sleeps how long."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now

    def wall(self) -> float:
        return 1e9 + self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_process_that_met_another_one_leaves_it_room_after_its_commits(url: str) -> None:
    clock = Sleeps()
    event = NewEvent(b"1", entity="one")
    with Inbox(url, "orders", clock=clock) as mine, Inbox(url, "orders") as other:
        mine.append([event])
        mine.append([event])
        assert clock.slept == [], "it is alone"
        other.append([event])
        [stored] = mine.append([event])
        assert stored.event == 4
        assert len(clock.slept) == 1, "before the next try"
        for count in (2, 3):
            mine.append([event])
            assert len(clock.slept) == count, "before the other one's look is out of date"
            assert 0 < clock.slept[-1] < 0.1
        clock.now += OTHERS_S
        mine.append([event])
        mine.append([event])
        assert len(clock.slept) == 3, "it is alone again"


def test_a_failure_reaches_every_thread_that_waits_and_later_appends_work(tmp_path: Path) -> None:
    where = tmp_path / "missing"
    with Inbox(f"sqlite:///{where}/ledger.db", "orders", patience_s=0.1) as inbox:
        with ThreadPoolExecutor(4) as pool:
            tries = [pool.submit(inbox.append, [NewEvent(b"x", entity="a")]) for _ in range(8)]
            for each in tries:
                assert "does not exist" in str(each.exception())
        where.mkdir()
        [stored] = inbox.append([NewEvent(b"x", entity="a")])
    assert (stored.event, stored.offset) == (1, 0)
