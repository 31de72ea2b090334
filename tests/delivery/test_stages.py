"""The second stage after files: a request or a function has its own intent, complete and policy."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.delivery import PipelineSpec
from semel.delivery.driver import _ended
from semel.errors import ConfigurationError, Fenced, HeldInDoubt, NotDelivered, Rejected
from semel.ledger import Ledger
from semel.ledger.inspect.check import check_ledger
from semel.ledger.verbs.runs import Owners
from semel.sinks import Http, Kafka, Retry
from semel.sinks.files import Files, committed
from semel.sinks.files.manifests import Manifest
from support.destinations import Absorber, Database, Register
from support.pipeline import GIVEN, World, crash_everywhere

ONCE = Retry(for_s=0.0)
INPUT = ("a1 b2", "c3", "d4 e5")


class Service:
    """Remembers every manifest that it was called with; a call crosses the wire."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.raises: list[BaseException] = []
        self.world: World | None = None

    def __call__(self, manifest: Manifest) -> None:
        def act() -> None:
            if self.raises:
                raise self.raises.pop(0)
            self.seen.append(str(manifest.minibatch))

        assert self.world is not None
        self.world.wire.cross(f"call {manifest.key}", act)

    def has(self, manifest: Manifest) -> bool:
        return str(manifest.minibatch) in self.seen


def staged(folder: Path, service: Service, **settings: Any) -> World:
    """A pipeline to files, and each manifest to the service."""
    then: Any = service
    if settings:
        make: Any = semel.sink
        then = make(name="notify", retry=ONCE, **settings)(service)
    world = World()
    service.world = world
    world.sinks.append(Files(name="out", url=str(folder), then=then, retry=ONCE))
    world.start()
    return world


def stage(world: World) -> str:
    found = [
        name
        for name, each in (Owners(world.client).described() or {})["sinks"].items()
        if "stage_of" in each
    ]
    return str(found[0])


def states(world: World) -> list[str]:
    return [f"{row.event} {row.state.value}" for _, row in world.parked_rows(stage(world))]


def resolve(world: World, event: str, decision: str) -> None:
    from semel.ledger.verbs.parked import resolve_parked as say
    from semel.protocol import ParkedState

    [at] = [at for at, row in world.parked_rows(stage(world)) if row.event == event]
    say(world.client, stage(world), at, ParkedState(decision), "ann", "looked")


def restarted(world: World) -> None:
    """The process is gone, and another start takes over."""
    world.gone.update(world.process(f"driver-{each}") for each in range(1, 20))
    world.start()


@pytest.mark.rows("A15")
def test_each_manifest_is_handed_over_once_and_its_row_does_not_stay(tmp_path: Path) -> None:
    service = Service()
    world = staged(tmp_path, service)
    for batch in range(8):
        world.minibatch(batch, f"a{batch + 1}")
    assert service.seen == [f"1.{batch}" for batch in range(8)]
    assert states(world) == ["1.6 delivered", "1.7 delivered"]
    assert list(world.store.memory.scan("heads", "")) == []
    assert check_ledger(world.store)[1] == []


@pytest.mark.rows("A15")
@pytest.mark.parametrize(
    ("policy", "lost"),
    [(each, False) for each in ("hold", "resend", "skip", "stop", "probe")]
    + [("hold", True), ("probe", True)],
)
def test_after_a_crash_at_any_step_nothing_is_repeated_or_lost_beyond_the_policy(
    tmp_path: Path, policy: str, *, lost: bool
) -> None:
    folders = iter(range(10_000))
    services: dict[int, Service] = {}
    doubts: set[int] = set()

    def begun() -> World:
        service = Service()
        said: Any = service.has if policy == "probe" else policy
        world = staged(tmp_path / str(next(folders)), service, on_doubt=said)
        services[id(world)] = service
        world.minibatch(0, INPUT[0])
        return world

    for what, world in crash_everywhere(begun, lambda world: world.minibatch(1, INPUT[1])):
        service = services[id(world)]
        called = service.seen.count("1.1")
        intended = "1.1 sending" in states(world)
        restarted(world)
        crashed = "nothing" not in what

        def go_on(world: World = world) -> None:
            if lost:
                world.minibatch(0, " ".join(INPUT), query="another")
            else:
                world.minibatch(1, INPUT[1])
                world.minibatch(2, INPUT[2])

        doubt = crashed and intended
        doubts |= {called} if doubt else set()
        if doubt and policy == "stop":
            with pytest.raises(HeldInDoubt, match="in doubt"):
                go_on()
            restarted(world)
            with pytest.raises(HeldInDoubt, match="in doubt"):
                go_on()
            resolve(world, "1.1", "delivered" if called else "resend")
            world.clock.move(100.0)
            restarted(world)
        go_on()
        if doubt and policy == "hold":
            assert "1.1 held" in states(world), what
            assert service.seen.count("1.1") == called, what
            resolve(world, "1.1", "delivered" if called else "resend")
            world.clock.move(100.0)
            world.driver.drain()
        if policy == "skip" and doubt:
            assert service.seen.count("1.1") == called, what
            assert "1.1 skipped" in states(world), what
        elif policy == "resend" and doubt:
            assert service.seen.count("1.1") == called + 1, what
        else:
            names = [each.minibatch for each in committed(f"{world.sinks[0].url}/pay/out")]  # type: ignore[attr-defined]
            assert service.seen == list(map(str, names)), what
        assert check_ledger(world.store)[1] == [], what
    assert doubts == {0, 1}, "a crash before the request, and one after it"


KINDS: dict[str, Callable[[], Any]] = {
    "repeatable": Absorber,
    "probing": Register,
    "transactional": Database,
}


@pytest.mark.rows("A15")
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_stage_that_is_a_sink_gets_each_manifest_once_after_any_crash(
    tmp_path: Path, kind: str
) -> None:
    folders = iter(range(10_000))

    def begun() -> World:
        world = World()
        destination = KINDS[kind]()
        then = world.add(destination, "notify", retry=ONCE)
        folder = tmp_path / str(next(folders))
        world.sinks[:] = [Files(name="out", url=str(folder), then=then, retry=ONCE)]
        world.start()
        world.minibatch(0, INPUT[0])
        return world

    for what, world in crash_everywhere(begun, lambda world: world.minibatch(1, INPUT[1])):
        restarted(world)
        world.minibatch(1, INPUT[1])
        world.minibatch(2, INPUT[2])
        assert world.destinations["notify"].seen == "1.0 1.1 1.2", what
        assert "held" not in " ".join(states(world)), what


def test_a_service_that_is_down_stops_the_query_and_the_next_run_sends(tmp_path: Path) -> None:
    service = Service()
    world = staged(tmp_path, service, on_doubt="hold")
    service.raises = [NotDelivered("away")]
    with pytest.raises(NotDelivered, match=r"could not be sent to 'notify' \(away\)"):
        world.minibatch(0, INPUT[0])
    assert len(list(committed(f"{tmp_path}/pay/out"))) == 1
    restarted(world)
    world.minibatch(0, INPUT[0])
    assert service.seen == ["1.0"]


def test_a_lost_answer_is_a_doubt_at_once_and_others_wait_behind_it(tmp_path: Path) -> None:
    service = Service()
    world = staged(tmp_path, service)
    service.raises = [OSError("the reply was lost")]
    for batch, text in enumerate(INPUT):
        world.minibatch(batch, text)
    assert service.seen == []
    assert states(world) == ["1.0 held", "1.1 waiting", "1.2 waiting"]
    resolve(world, "1.0", "delivered")
    world.driver.drain()
    assert service.seen == ["1.1", "1.2"]
    kept = [(row.state, row.by, row.reason) for _, row in world.parked_rows(stage(world))]
    assert kept[0] == ("delivered", "ann", "looked")


def test_a_refused_manifest_is_a_dead_letter_and_others_go_on(tmp_path: Path) -> None:
    service = Service()
    world = staged(tmp_path, service, on_doubt="hold")
    service.raises = [Rejected("no such table")]
    for batch, text in enumerate(INPUT):
        world.minibatch(batch, text)
    assert service.seen == ["1.1", "1.2"]
    assert states(world)[0] == "1.0 rejected"


def test_no_more_manifests_wait_than_park_limit_says(tmp_path: Path) -> None:
    service = Service()
    world = staged(tmp_path, service, on_doubt="hold", park_limit=2)
    service.raises = [OSError("lost")]
    world.minibatch(0, "a1")
    world.minibatch(1, "b2")
    with pytest.raises(HeldInDoubt, match="2 manifests wait behind one"):
        world.minibatch(2, "c3")


def test_a_stage_that_was_not_handed_the_newest_manifest_is_not_left_out(tmp_path: Path) -> None:
    folders = iter(range(10_000))
    made: dict[int, tuple[Service, Path]] = {}

    def begun() -> World:
        service, folder = Service(), tmp_path / str(next(folders))
        world = staged(folder, service)
        made[id(world)] = service, folder
        world.minibatch(0, INPUT[0])
        return world

    refused = 0
    for what, world in crash_everywhere(begun, lambda world: world.minibatch(1, INPUT[1])):
        service, folder = made[id(world)]
        complete = world.opened().complete and world.opened().minibatch.batch == 1
        every, world.sinks = world.sinks, [Files(name="out", url=str(folder), retry=ONCE)]
        restarted(world)
        try:
            world.minibatch(1, INPUT[1])
        except ConfigurationError as error:
            refused += "minibatch 1.1 was not handed to it" in str(error)
            world.sinks = every
            restarted(world)
            world.minibatch(1, INPUT[1])
            assert service.seen == ["1.0", "1.1"], what
            world.sinks = [Files(name="out", url=str(folder), retry=ONCE)]
            restarted(world)
        else:
            assert not complete or len(states(world)) == 2, what
        for _ in range(2):  # without it, and again: it is not asked for any more
            world.minibatch(2, INPUT[2])
            restarted(world)
        assert check_ledger(world.store)[1] == [], what
    assert refused


def test_a_replaced_driver_hands_nothing_over(tmp_path: Path) -> None:
    service = Service()
    world = staged(tmp_path, service)
    early, opening = world.driver, world.open(0)
    reports = world.task(opening, "a1")
    early._minibatches.complete(opening, reports, ["out"])
    restarted(world)
    world.open(0)
    [ended] = _ended(world.client, "out", "pay/out/")
    Files.conclude(world.sinks[0], ended)  # type: ignore[arg-type]
    with pytest.raises(Fenced, match="run 1 was replaced before it passed minibatch"):
        early._stages().hand_over(world.sinks[0], ended)
    assert service.seen == []


@pytest.mark.rows("O1")
def test_find_and_status_speak_of_the_stage_as_of_what_it_is(tmp_path: Path) -> None:
    service = Service()
    world = staged(tmp_path, service)
    service.raises = [OSError("lost")]
    world.minibatch(0, "a1")
    ledger = Ledger(world.store)
    [trace] = ledger.find("pay", "a", 1)
    assert (trace.sink, trace.state) == ("out", "delivered")
    assert [each.sink for each in ledger.about("pay", "a")] == ["out"]
    summary = ledger.summary("pay").sinks
    assert summary["out.then"].parked == {"held": 1}
    [held] = ledger.find("pay", "out", "1.0", sink="out.then")
    assert held.state == "in doubt"
    [unseen] = ledger.find("pay", "out", "1.7", sink="out.then")
    assert unseen.state == "not seen"


def test_a_pipeline_without_a_second_stage_writes_and_reads_nothing_for_it(tmp_path: Path) -> None:
    def commits(then: Any) -> int:
        world = World()
        world.sinks.append(Files(name="out", url=str(tmp_path / str(then)), then=then))
        world.start()
        world.minibatch(0, "a1")
        world.wire.forget()
        world.minibatch(1, "b2")
        return len([each for each in world.wire.log if each.startswith("commit")])

    assert commits(None) == 3
    assert commits(lambda _: None) == 3 + 4


def test_what_cannot_be_a_second_stage_is_refused(tmp_path: Path) -> None:
    def batches(_: object) -> None:
        raise AssertionError

    for then, why in [
        (
            Kafka(name="k", servers="127.0.0.1:1", topic="t", sequenced=True),
            "cannot be a sequenced",
        ),
        (Files(name="in", url=str(tmp_path)), "cannot be a sequenced topic or files"),
        (semel.sink(batches=True)(batches), "batches=True"),
        (7, "must be a loader, a sink or a function"),
    ]:
        with pytest.raises(ConfigurationError, match=why):
            Files(name="out", url=str(tmp_path), then=then)  # type: ignore[arg-type]
    twice = Files(name="out", url=str(tmp_path), then=semel.sink(name="other")(batches))
    other = Files(name="other", url=str(tmp_path))
    with pytest.raises(ConfigurationError, match="two sinks have the name 'other'"):
        PipelineSpec("pay", (twice, other), GIVEN)


CHILD = """
import sys, os, signal, urllib.request
sys.path.insert(0, sys.argv[1])
from support.pipeline import World
from semel.ledger.client import LedgerClient
from semel.ledger.store.opening import open_store
from semel.runtime import SystemClock
from semel.delivery import Runtime
from semel.runtime import Process
from semel.sinks.files import Files
import semel
_, _, folder, url, policy, dies = sys.argv

@semel.sink(name="notify", on_doubt=policy, lease_s=0.1, deadline_s=0.1)
def notify(manifest):
    urllib.request.urlopen(url, data=manifest.key.encode(), timeout=30).read()
    if dies == str(manifest.minibatch):
        os.kill(os.getpid(), signal.SIGKILL)

world = World()
world.clock = SystemClock()
world.store = open_store(f"sqlite:///{folder}/ledger.db")
world.client = LedgerClient(world.store, "pay")
world.runtime = Runtime()
world.process = lambda _: Process.here()
world.sinks.append(Files(name="out", url=folder + "/lake", then=notify))
world.start()
for batch, text in enumerate(["a1", "b2", "c3"]):
    if dies or batch:
        world.minibatch(batch, text)
print([f"{row.event} {row.state.value}" for _, row in world.parked_rows("notify")])
"""


@pytest.mark.rows("A15")
@pytest.mark.parametrize("policy", ["hold", "resend"])
def test_a_driver_killed_after_its_request_leaves_a_doubt_that_the_policy_decides(
    tmp_path: Path, policy: str
) -> None:
    taken: list[str] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    def run(dies: str) -> subprocess.CompletedProcess[str]:
        tests = str(Path(__file__).parents[1])
        url = f"http://127.0.0.1:{server.server_port}/"
        words = [sys.executable, "-c", CHILD, tests, str(tmp_path), url, policy, dies]
        return subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)

    with ThreadingHTTPServer(("127.0.0.1", 0), Takes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert run("1.1").returncode == -signal.SIGKILL
            assert taken == ["pay/out/1.0", "pay/out/1.1"]
            again = run("")
        finally:
            server.shutdown()
            thread.join()
    assert again.returncode == 0, again.stderr
    if policy == "hold":
        assert taken == ["pay/out/1.0", "pay/out/1.1"]
        assert again.stdout.strip().endswith("'1.1 held', '1.2 waiting']")
    else:
        assert taken == ["pay/out/1.0", "pay/out/1.1", "pay/out/1.1", "pay/out/1.2"]


@pytest.mark.rows("A15")
def test_a_request_over_http_is_sent_once_for_each_manifest(tmp_path: Path) -> None:
    taken: list[tuple[str, dict[str, Any]]] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            taken.append((self.headers["Idempotency-Key"], body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Takes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/load/{{minibatch}}"
            world = World()
            then = Http(name="notify", url=url, idempotency=True)
            world.sinks.append(Files(name="out", url=str(tmp_path), then=then))
            world.start()
            world.minibatch(0, "a1 b2")
            world.minibatch(1, "c3")
            restarted(world)
            world.minibatch(1, "c3")
        finally:
            server.shutdown()
            thread.join()
    assert [body["manifest"] for _, body in taken] == ["pay/out/1.0", "pay/out/1.1"]
    assert [body["rows"] for _, body in taken] == [2, 1]
    assert [body["files"] for _, body in taken] == [
        each.urls for each in committed(f"{tmp_path}/pay/out")
    ]
    assert len({key for key, _ in taken}) == 2
