"""Runs of a pipeline: run numbers, what may not change under a name, and the heartbeat."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from typing import Any

import pytest

from semel.errors import ConfigurationError, Fenced
from semel.ledger import payloads
from semel.ledger.keys import make_key
from semel.ledger.verbs.runs import OwnerRow, forget_start, register_start, starting_pipeline
from semel.runtime import Process
from support.ledger.one_pipeline import DESCRIPTION, ELSEWHERE, SINK, LedgerWorld

LEASE_S = 10.0


def changed(**parts: Any) -> dict[str, Any]:
    return {**DESCRIPTION, **parts}


def owner_of(world: LedgerWorld) -> OwnerRow:
    owner = world.owners.owner()
    assert owner is not None
    return owner


# --- registration ---------------------------------------------------------------------------------


@pytest.mark.rows("A17")
def test_run_numbers_of_a_pipeline_only_grow(world: LedgerWorld) -> None:
    runs = [world.owners.register(DESCRIPTION, ELSEWHERE, f"n{at}") for at in range(4)]
    assert runs == [1, 2, 3, 4]
    other = LedgerWorld(world.path, "another pipeline")
    assert other.owners.register(DESCRIPTION, ELSEWHERE, "n1") == 1
    other.close()


def test_a_nonce_is_found_again_and_makes_no_second_run(world: LedgerWorld) -> None:
    world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    first = world.owners.register(DESCRIPTION, ELSEWHERE, "n2")
    world.store.forget()
    assert world.owners.register(DESCRIPTION, ELSEWHERE, "n2") == first
    assert not world.store.asked


def test_a_registration_whose_reply_was_lost_is_found_again(world: LedgerWorld) -> None:
    world.store.lose_replies()
    assert world.owners.register(DESCRIPTION, ELSEWHERE, "n1") == 1
    assert owner_of(world).run == 1


def test_of_two_registrations_at_once_each_gets_its_own_number(world: LedgerWorld) -> None:
    other = world.another()
    world.store.let_in(lambda: other.owners.register(DESCRIPTION, ELSEWHERE, "other"))
    assert world.owners.register(DESCRIPTION, ELSEWHERE, "mine") == 2
    assert owner_of(world).nonce == "mine"


# --- what may not change under a name -------------------------------------------------------------


CHANGES = [
    (changed(identity={"kind": "position"}), r"identity: kind was 'given' and is 'position'"),
    (
        changed(sinks={SINK: {"capability": "transactional"}}),
        r"sink 'charge': capability was 'opaque' and is 'transactional'",
    ),
    ({"sinks": DESCRIPTION["sinks"]}, r"identity was .*given.* and is None"),
]


@pytest.mark.parametrize(("description", "named"), CHANGES)
def test_another_identity_or_sink_under_a_used_name_is_refused_and_named(
    world: LedgerWorld, description: dict[str, Any], named: str
) -> None:
    world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    before = world.store.contents()
    with pytest.raises(ConfigurationError, match=named) as refused:
        world.owners.register(description, ELSEWHERE, "n2")
    assert "'pay'" in str(refused.value)
    assert "new name" in str(refused.value)
    assert world.store.contents() == before


@pytest.mark.rows("S20")
def test_a_further_sink_is_accepted_and_remembered(world: LedgerWorld) -> None:
    world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    mail = {"mail": {"capability": "opaque"}}
    assert world.owners.register(changed(sinks=mail), ELSEWHERE, "n2") == 2
    recorded = payloads.load_payload(world.store.contents()[make_key("pipelines", "pay")])
    assert recorded["sinks"] == {**DESCRIPTION["sinks"], **mail}
    with pytest.raises(ConfigurationError, match="sink 'mail'"):
        world.owners.register(changed(sinks={"mail": {"capability": "x"}}), ELSEWHERE, "n3")


def test_two_that_add_a_sink_at_once_lose_neither(world: LedgerWorld) -> None:
    other = world.another()
    world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    mail, text = {"mail": {"capability": "opaque"}}, {"text": {"capability": "opaque"}}
    world.store.let_in(lambda: other.owners.register(changed(sinks=mail), ELSEWHERE, "n2"))
    world.owners.register(changed(sinks=text), ELSEWHERE, "n3")
    recorded = payloads.load_payload(world.store.contents()[make_key("pipelines", "pay")])
    assert recorded["sinks"].keys() == {SINK, "mail", "text"}


# --- the heartbeat --------------------------------------------------------------------------------


@pytest.mark.rows("A18")
def test_a_beat_moves_the_owners_row(world: LedgerWorld) -> None:
    run = world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    before = owner_of(world)
    world.owners.beat(run, "n1")
    after = owner_of(world)
    assert (after.beat, after.run, after.process) == (before.beat + 1, run, ELSEWHERE)


@pytest.mark.rows("A17", "A18")
def test_a_run_that_was_replaced_is_fenced_by_its_next_beat(world: LedgerWorld) -> None:
    first = world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    world.owners.register(DESCRIPTION, ELSEWHERE, "n2")
    before = world.store.contents()
    with pytest.raises(Fenced, match=r"run 1 was replaced by run 2"):
        world.owners.beat(first, "n1")
    assert world.store.contents() == before


@pytest.mark.rows("A17")
def test_a_run_that_is_replaced_while_it_beats_is_fenced(world: LedgerWorld) -> None:
    other = world.another()
    run = world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    world.store.let_in(lambda: other.owners.register(DESCRIPTION, ELSEWHERE, "n2"))
    with pytest.raises(Fenced, match="replaced by run 2"):
        world.owners.beat(run, "n1")
    assert (owner_of(world).nonce, owner_of(world).beat) == ("n2", 0)


def test_a_beat_of_a_pipeline_nobody_registered_is_fenced(world: LedgerWorld) -> None:
    with pytest.raises(Fenced):
        world.owners.beat(1, "n1")


# --- is the owner alive? --------------------------------------------------------------------------


@pytest.mark.rows("A18")
def test_an_owner_whose_beat_moves_is_alive(world: LedgerWorld) -> None:
    run = world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    world.clock.meanwhile = lambda: world.owners.beat(run, "n1")
    assert world.owners.alive(Process.here(), LEASE_S)
    assert sum(world.clock.slept) < LEASE_S, "nobody waits longer than needed"


@pytest.mark.rows("A18")
def test_an_owner_whose_beat_stands_still_for_a_lease_is_not_alive(world: LedgerWorld) -> None:
    world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    assert not world.owners.alive(Process.here(), LEASE_S)
    assert sum(world.clock.slept) == pytest.approx(LEASE_S)


def test_an_owner_that_ends_while_it_is_watched_is_not_alive(world: LedgerWorld) -> None:
    run = world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    world.clock.meanwhile = lambda: world.owners.beat(run, "n1", ended=True)
    assert not world.owners.alive(Process.here(), LEASE_S)


def test_nobody_waits_for_a_name_that_is_free(world: LedgerWorld) -> None:
    me = Process.here()
    assert not world.owners.alive(me, LEASE_S)
    run = world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    world.owners.beat(run, "n1", ended=True)
    assert not world.owners.alive(me, LEASE_S)
    world.owners.register(DESCRIPTION, me, "n2")
    assert not world.owners.alive(me, LEASE_S)
    assert not world.clock.slept


def test_a_start_of_the_own_process_is_alive_as_long_as_it_is_active(world: LedgerWorld) -> None:
    me, active = Process.here(), [True]
    world.owners.register(DESCRIPTION, me, "n1")
    register_start("n1", lambda: bool(active))
    try:
        assert world.owners.alive(me, LEASE_S)
        active.clear()
        assert not world.owners.alive(me, LEASE_S)
        active.append(True)
        assert world.owners.alive(me, LEASE_S)
    finally:
        forget_start("n1")
    assert not world.owners.alive(me, LEASE_S)
    assert not world.clock.slept, "of the own process it is known at once"


def test_a_start_of_the_own_process_that_ended_or_was_replaced_is_not_alive(
    world: LedgerWorld,
) -> None:
    me = Process.here()
    run = world.owners.register(DESCRIPTION, me, "n1")
    register_start("n1", lambda: True)
    try:
        world.owners.beat(run, "n1", ended=True)
        assert not world.owners.alive(me, LEASE_S)
        world.owners.register(DESCRIPTION, me, "n2")
        assert not world.owners.alive(me, LEASE_S)
    finally:
        forget_start("n1")


def test_threads_start_a_pipeline_one_by_one_and_other_pipelines_at_once(
    world: LedgerWorld,
) -> None:
    began, went_on = threading.Event(), threading.Event()

    def start() -> None:
        began.set()
        with starting_pipeline("ledger", "pay"):
            went_on.set()

    with starting_pipeline("ledger", "pay"):
        thread = threading.Thread(target=start)
        thread.start()
        assert began.wait(5)
        with starting_pipeline("ledger", "other"), starting_pipeline("another ledger", "pay"):
            assert not went_on.wait(0.2)
    assert went_on.wait(5)
    thread.join()


@pytest.mark.rows("A18")
def test_a_process_known_to_be_gone_is_not_waited_for(world: LedgerWorld) -> None:
    code = (
        "import json, sys; from dataclasses import asdict; from semel.runtime import Process;"
        "print(json.dumps(asdict(Process.here())), flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    process = Process(**json.loads(child.stdout.readline()))
    world.owners.register(DESCRIPTION, process, "n1")
    assert not process.gone()
    assert not world.owners.alive(Process.here(), LEASE_S)
    assert sum(world.clock.slept) == pytest.approx(LEASE_S)
    child.stdin.close()
    child.stdout.close()
    child.wait()
    assert process.gone()
    assert not world.owners.alive(Process.here(), LEASE_S)
    assert sum(world.clock.slept) == pytest.approx(LEASE_S)


def test_of_a_process_of_another_machine_nobody_knows_that_it_is_gone() -> None:
    here = Process.here()
    assert not ELSEWHERE.gone()
    assert not here.gone()
    assert Process(here.host, here.boot, here.pid, "1").gone()
    assert not Process(here.host, "", here.pid, "1").gone()
    assert Process(**json.loads(json.dumps(asdict(here)))) == here


def test_of_a_process_of_another_container_nobody_knows_that_it_is_gone(
    world: LedgerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Process.here()
    with monkeypatch.context() as beside:  # on the same machine, with process ids of its own
        beside.setattr("os.readlink", lambda _: "pid:[7]")
        there = Process.here()
        living = replace(there, pid=there.pid + 100_000)
        assert living.gone(), "whoever sees the same process ids knows"
    assert not living.gone()
    world.owners.register(DESCRIPTION, living, "n1")
    world.clock.meanwhile = lambda: world.owners.beat(1, "n1")
    assert world.owners.alive(here, LEASE_S)
