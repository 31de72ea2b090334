"""`semel explain` and `semel.explain`: the guarantee in plain words, honest and complete."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import semel as package
from semel.delivery import PipelineSpec
from semel.delivery.calling import forgets
from semel.errors import ConfigurationError
from semel.events import Counter, Given, Identity, Memory, Position
from semel.guarantees.costs import cost
from semel.guarantees.wording import (
    AFTER_A_CRASH,
    AFTER_A_LOST_CHECKPOINT,
    AFTER_A_ZOMBIE,
    AFTER_AN_OPAQUE_ZOMBIE,
    BECAUSE,
    ON_DOUBT,
    ON_REJECT,
)
from semel.protocol import Capability, OnDoubt, OnReject
from semel.sinks import Files, Http, Postgres, Sink
from support.command_line import read_json, refused, semel
from support.destinations import Absorber, Database, Destination, Logs, Post, Register

Out = pytest.CaptureFixture[str]

GIVEN = Given("customer", ("payment_id",))
DESTINATIONS: dict[Capability, type[Destination]] = {
    Capability.TRANSACTIONAL: Database,
    Capability.SEQUENCED: Logs,
    Capability.REPEATABLE: Absorber,
    Capability.PROBING: Register,
    Capability.OPAQUE: Post,
}


def sink_of(capability: Capability, **settings: Any) -> Sink:
    made: Sink = DESTINATIONS[capability]().sink("out", **settings)  # type: ignore[attr-defined]
    return made


def told(subject: object) -> str:
    return " ".join(str(package.explain(subject)).split())


def test_every_capability_and_policy_has_its_words() -> None:
    assert BECAUSE.keys() == AFTER_A_CRASH.keys() == set(Capability)
    assert AFTER_A_ZOMBIE.keys() == set(Capability) - {Capability.OPAQUE}
    assert ON_DOUBT.keys() == AFTER_AN_OPAQUE_ZOMBIE.keys() == set(OnDoubt)
    assert ON_REJECT.keys() == set(OnReject)
    assert AFTER_A_LOST_CHECKPOINT.keys() == set(Memory)


@pytest.mark.parametrize("capability", Capability)
@pytest.mark.parametrize("identity", [Position(), GIVEN, Counter("customer")])
def test_a_pipeline_is_told_with_its_row_of_the_promise(
    capability: Capability, identity: Identity
) -> None:
    spec = PipelineSpec("charges", (sink_of(capability),), identity)
    words = told(spec)
    for part in (f"is {capability.value.upper()}:", "'charges'", AFTER_A_CRASH[capability]):
        assert part in words
    assert "{" not in words
    for part in ("After a zombie", "After a lost checkpoint", "Order:", "Not promised"):
        assert part in words
    as_json = package.explain(spec).to_json()
    assert json.loads(json.dumps(as_json)) == json.loads(json.dumps(as_json))
    assert as_json["sinks"][0]["capability"] == capability.value


@pytest.mark.parametrize("capability", [each for each in Capability if each != "opaque"])
def test_only_an_opaque_sink_has_events_in_doubt(capability: Capability) -> None:
    [promise] = package.explain(sink_of(capability)).sinks
    assert (promise.in_doubt_per_partition, promise.in_doubt_at_once) == (0, 0)
    assert promise.in_doubt.startswith("none")


def test_what_may_be_in_doubt_is_the_window_times_the_partitions() -> None:
    opaque = sink_of(Capability.OPAQUE, chunk_rows=3)
    [promise] = package.explain(PipelineSpec("p", (opaque,), GIVEN, partitions=8)).sinks
    assert (promise.in_doubt_per_partition, promise.in_doubt_at_once) == (3, 24)
    assert "at most 3 events per partition and crash, so 24 in all 8 partitions" in promise.in_doubt
    [promise] = package.explain(PipelineSpec("p", (opaque,), Position(), partitions=8)).sinks
    assert promise.in_doubt_at_once is None
    assert promise.in_doubt.startswith("at most 3 events per partition and crash. Policy")


def test_a_sink_alone_says_what_shows_the_rest_of_its_cost() -> None:
    [alone] = package.explain(sink_of(Capability.OPAQUE)).sinks
    spec = PipelineSpec("p", (sink_of(Capability.OPAQUE),), GIVEN)
    [within] = package.explain(spec).sinks
    commits, rest = alone.costs.split(" What the ledger keeps")
    assert within.costs.startswith(f"{commits} Remembers each id")
    assert rest.endswith("explain the result of semel.deliver to see it.")


@pytest.mark.parametrize("policy", OnDoubt)
def test_the_policy_is_told(policy: OnDoubt) -> None:
    probe = {"probe": lambda _: None} if policy is OnDoubt.PROBE else {}
    words = told(sink_of(Capability.OPAQUE, on_doubt=policy, **probe))
    assert f"Policy '{policy.value}'" in words
    assert ("waits lease and deadline" in words) == (policy in (OnDoubt.RESEND, OnDoubt.PROBE))


def test_one_truth_is_told_of_what_can_be_asked_and_of_what_is_parked(tmp_path: Path) -> None:
    postgres = Postgres(name="out", url="postgresql://h/d", table="t")
    assert "In doubt: none, ever; the destination knows what arrived." in told(postgres)
    asked = told(Http(name="out", url="http://h", probe="http://h/{id}"))
    assert "neither be asked" not in asked
    assert "Your probe is asked about each event that may have arrived" in asked
    files = told(Files(name="out", url=str(tmp_path)))
    assert "nothing is parked" in files
    assert "dead letter" not in files


def test_how_long_a_destination_remembers_is_told() -> None:
    assert "remembers keys for 24 hours" in told(sink_of(Capability.REPEATABLE))
    assert "remembers keys for 90 seconds" in told(sink_of(Capability.REPEATABLE, remembers_s=90))


def test_that_a_repeat_has_to_arrive_while_its_key_is_remembered_is_told() -> None:
    sink = sink_of(Capability.REPEATABLE, remembers_s=90, deadline_s=30)
    assert not forgets(sink, 59.0)
    assert forgets(sink, 61.0)
    assert "down for longer than 60 seconds" in told(sink)
    never = sink_of(Capability.REPEATABLE, remembers_s=20, deadline_s=30)
    assert forgets(never, 0.0)
    assert "down for longer than 0 seconds" in told(never)


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (Position(), "nothing is repeated. The ledger knows up to which offset"),
        (Given("c", ("id",), increasing=True), "the greatest id of each entity"),
        (GIVEN, "nothing is repeated of the last 2 hours"),
        (Counter("c"), "refused. Counted ids restart"),
    ],
)
def test_what_survives_a_lost_checkpoint_is_told(identity: Identity, words: str) -> None:
    spec = PipelineSpec("p", (sink_of(Capability.OPAQUE),), identity, remember_s=7_200)
    assert words in told(spec)
    found = package.explain(spec).identity
    assert found is not None
    assert found.survives_lost_checkpoint == identity.survives_lost_checkpoint


def test_a_topic_made_anew_that_nobody_would_notice_is_told_with_the_reason() -> None:
    unknown = PipelineSpec(
        "p", (sink_of(Capability.OPAQUE),), Position(), unknown_source="it is dark"
    )
    assert "A recreated topic is detected only when it reaches that offset: it is dark." in told(
        unknown
    )
    assert "A recreated topic stops it too." in told(replace(unknown, unknown_source=""))


def test_order_is_told_as_it_is() -> None:
    opaque = sink_of(Capability.OPAQUE)
    assert "in order of payment_id" in told(PipelineSpec("p", (opaque,), GIVEN))
    assert "Order: off" in told(PipelineSpec("p", (opaque,), GIVEN, order=False))
    assert "wait behind it" not in told(PipelineSpec("p", (opaque,), GIVEN, order=False))
    assert "No entity is named" in told(PipelineSpec("p", (opaque,), Position()))
    assert "within a source partition" in told(PipelineSpec("p", (opaque,), Position(entity="c")))


def test_a_bare_sink_a_function_and_what_carries_a_spec_are_understood() -> None:
    class Writer:
        spec = PipelineSpec("charges", (sink_of(Capability.OPAQUE),), GIVEN)

    def charge(event: package.Event) -> None:
        raise AssertionError("it is not called")

    def refund(event: package.Event | None = None) -> None:
        raise AssertionError("it is not called")

    def pay(*event: package.Event) -> None:
        raise AssertionError("it is not called")

    assert package.explain(sink_of(Capability.PROBING)).identity is None
    assert package.explain(Writer()).pipeline == "charges"
    assert package.explain(lambda: Writer()).pipeline == "charges"  # noqa: PLW0108
    assert [package.explain(each).sinks[0].name for each in (charge, refund, pay)] == [
        "charge",
        "refund",
        "pay",
    ]
    for wrong in (5, None, object, lambda: 5, lambda: lambda: 5):
        with pytest.raises(ConfigurationError, match="cannot be explained"):
            package.explain(wrong)


# -- the command


MODULE = """
import semel
from semel.delivery import PipelineSpec
from semel.events import Given

print("a module may print")


@semel.sink(window=2)
def charge(event):
    raise AssertionError


class Kept:
    charge = charge


def pipeline():
    return PipelineSpec("charges", (charge,), Given("customer", ("payment_id",)), partitions=4)


def broken():
    raise RuntimeError("no\\nsession")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"payments_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    return name


def test_the_command_tells_a_sink_and_a_pipeline(module: str, capsys: Out) -> None:
    status, out, _ = semel(capsys, "explain", f"{module}:charge")
    assert status == 0
    assert out.startswith("Sink 'charge' is OPAQUE")
    assert semel(capsys, "explain", f"{module}:Kept.charge")[1] == out
    as_json = read_json(capsys, "explain", f"{module}:pipeline")
    assert (as_json["pipeline"], as_json["sinks"][0]["in_doubt_at_once"]) == ("charges", 8)


def test_what_cannot_be_imported_found_or_explained_gets_one_line(
    module: str, tmp_path: Path, capsys: Out
) -> None:
    (tmp_path / "ill.py").write_text("def f(:\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit('bye')\n")
    assert "cannot import 'nowhere_at_all'" in refused(capsys, "explain", "nowhere_at_all:x")
    assert "cannot import 'ill': SyntaxError" in refused(capsys, "explain", "ill:f")
    assert "cannot import 'leaves': SystemExit" in refused(capsys, "explain", "leaves:f")
    assert "is not MODULE:OBJECT" in refused(capsys, "explain", "payments")
    semel(capsys, "explain", f"{module}:charge")  # what it prints is not counted below
    assert "has no 'x.y'" in refused(capsys, "explain", f"{module}:x.y")
    assert "RuntimeError: no session" in refused(capsys, "explain", f"{module}:broken")
    assert "cannot be explained" in refused(capsys, "explain", f"{module}:semel")


RUNS = """
import semel

charge = semel.sinks.Http(name="charge", url="http://127.0.0.1:1")


def run():
    semel.deliver_batch(None, to=charge, name="charges", batch="1", ledger="sqlite:///pay.db")


GUARD:
    run()
"""


@pytest.mark.parametrize("command", ["explain", "verify-sink"])
def test_a_module_that_delivers_when_it_is_imported_is_told_to_guard_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    module = f"runs_{command[:6]}"
    (tmp_path / f"{module}.py").write_text(RUNS.replace("GUARD", "if True"))
    options = ["--arrived", f"{module}:run"] if command == "verify-sink" else []
    said = refused(capsys, command, f"{module}:charge", *options)
    assert f"semel.deliver_batch(...) is refused while `semel` imports '{module}'" in said
    assert 'Put what starts it under `if __name__ == "__main__":`' in said
    (tmp_path / f"guarded_{module}.py").write_text(
        RUNS.replace("GUARD", 'if __name__ == "__main__"')
    )
    if command == "explain":
        status, out, _ = semel(capsys, command, f"guarded_{module}:charge")
        assert (status, out[:23]) == (0, "Sink 'charge' is OPAQUE")
        said = refused(capsys, command, f"guarded_{module}:run")
        assert f"is refused while `semel` inspects 'guarded_{module}:run'" in said


def test_each_sink_says_what_holds_at_its_destination() -> None:
    files = package.sinks.Files(name="lake", url="file:///lake")
    postgres = package.sinks.Postgres(
        name="bank", url="postgresql://u:secret@127.0.0.1:1/b", table="t"
    )
    kafka = package.sinks.Kafka(name="out", servers="127.0.0.1:1", topic="booked")
    log = package.sinks.Kafka(name="out", servers="127.0.0.1:1", topic="booked", sequenced=True)
    redis = package.sinks.Redis(
        name="sums",
        url="redis://:secret@127.0.0.1:1/0",
        command="INCRBY",
        key="{a}",
        arguments=("{b}",),
    )
    http = package.sinks.Http(name="calls", url="https://bank.example/{a}", idempotency=True)
    every = (files, postgres, kafka, log, redis, http)
    told = [str(package.explain(sink)) for sink in every]
    words = (
        "manifest",
        "semel_progress",
        "'semel-progress'",
        "headers of the records",
        "Durability: unknown",
        "Idempotency-Key",
    )
    for text, word in zip(told, words, strict=True):
        assert word in text
        assert "secret" not in text


@pytest.mark.rows("N12")
def test_what_the_readmes_configuration_costs_is_printed_with_what_to_change() -> None:
    charge = package.sink(window=1, on_doubt="hold", name="charge")(lambda _: None)
    spec = PipelineSpec("charges", (charge,), GIVEN)
    [promise] = package.explain(spec).sinks
    assert promise.cost == cost(charge, spec)
    each, day = promise.cost.bytes_each, promise.cost.bytes_per_day
    assert day == each * 10 * 86_400
    remembers = (
        f"Remembers each id for 7 days: about {each:.0f} bytes per event, {day / 1e6:.3g} MB per "
        f"day and {7 * day / 1e6:.3g} MB in all at 10 events/s in micro-batches of 1 s."
    )
    for part in (
        "Costs: 1 ledger commit per event, besides 2 per minibatch and 1 per partition of it.",
        "window=100 costs 1 per 100 events",
        remembers,
        "increasing=True, where the ids of an entity only rise, remembers one id per entity",
    ):
        assert part in told(spec)


def test_what_costs_less_says_so() -> None:
    risen = PipelineSpec("p", (sink_of(Capability.TRANSACTIONAL),), replace(GIVEN, increasing=True))
    assert "Costs: no ledger commit per event, 2 per minibatch" in told(risen)
    assert "Remembers the last id of each entity" in told(risen)
    placed = PipelineSpec("p", (sink_of(Capability.REPEATABLE, chunk_rows=50),), Position())
    assert "Costs: 1 ledger commit per 400 events, besides" in told(placed)
    assert "Remembers nothing per event." in told(placed)
    assert "emember" not in package.explain(sink_of(Capability.OPAQUE)).sinks[0].costs


def test_a_plain_function_with_an_argument_is_said_to_be_taken_for_a_sink() -> None:
    def start(payments: object) -> object:
        return payments

    words = told(start)
    assert "'start' is a plain function with a parameter, so it is explained as a sink" in words
    assert "is a plain function" not in told(package.sink(start))
