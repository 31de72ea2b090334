"""The RESUME table has no hole, no dead rule, and says of every rule which crash leads to it."""

from __future__ import annotations

from itertools import product

import pytest

from semel.protocol import (
    CAN_BE_IN_DOUBT,
    DOUBT,
    IMPOSSIBLE,
    RECORDS_INTENTS,
    RESUME,
    Action,
    Capability,
    Found,
    OnDoubt,
    ParkedState,
    Remedy,
)

PAIRS = list(product(Found, Capability))
INTENTS = [each for each in Capability if each in RECORDS_INTENTS]


@pytest.mark.parametrize(("found", "capability"), PAIRS)
def test_every_pair_has_one_rule_or_a_reason_why_it_cannot_occur(
    found: Found, capability: Capability
) -> None:
    pair = (found, capability)
    assert (pair in RESUME) != (pair in IMPOSSIBLE)


def test_the_tables_have_no_pair_that_is_not_one() -> None:
    assert RESUME.keys() | IMPOSSIBLE.keys() == set(PAIRS)


def test_every_action_is_taken_by_some_rule() -> None:
    assert {rule.action for rule in RESUME.values()} == set(Action)


@pytest.mark.parametrize("pair", RESUME)
def test_every_rule_tells_the_crash_that_leads_to_it(pair: tuple[Found, Capability]) -> None:
    assert len(RESUME[pair].crash.split()) >= 5


@pytest.mark.parametrize("pair", IMPOSSIBLE)
def test_every_impossible_pair_has_a_reason(pair: tuple[Found, Capability]) -> None:
    assert len(IMPOSSIBLE[pair].split()) >= 5


@pytest.mark.rows("S8", "A10")
@pytest.mark.parametrize("capability", Capability)
def test_what_is_new_is_delivered_and_what_is_complete_only_counted(
    capability: Capability,
) -> None:
    assert RESUME[Found.NEW, capability].action is Action.DELIVER
    assert RESUME[Found.COMPLETE, capability].action is Action.COUNT


@pytest.mark.parametrize("capability", Capability)
def test_intents_are_recorded_where_the_destination_cannot_tell_progress(
    capability: Capability,
) -> None:
    reads_spans = RESUME[Found.PENDING, capability].action is Action.READ_SPANS
    assert reads_spans == (capability in RECORDS_INTENTS)
    assert ((Found.INTENDED, capability) in RESUME) == (capability in RECORDS_INTENTS)


@pytest.mark.parametrize("capability", INTENTS)
def test_a_span_that_may_have_been_sent_is_never_simply_delivered(capability: Capability) -> None:
    assert RESUME[Found.INTENDED, capability].action is not Action.DELIVER
    assert RESUME[Found.SETTLED, capability].action is Action.SKIP
    assert RESUME[Found.UNRECORDED, capability].action is Action.DELIVER


@pytest.mark.parametrize("capability", Capability)
def test_only_an_opaque_destination_leaves_an_open_span_in_doubt(capability: Capability) -> None:
    rule = RESUME.get((Found.INTENDED, capability))
    doubted = rule is not None and rule.action is Action.DOUBT
    assert doubted == (capability in CAN_BE_IN_DOUBT)


@pytest.mark.rows("O23", "A14")
def test_each_destination_that_can_tell_is_asked_its_own_question() -> None:
    asked = {
        Capability.TRANSACTIONAL: RESUME[Found.PENDING, Capability.TRANSACTIONAL].action,
        Capability.SEQUENCED: RESUME[Found.PENDING, Capability.SEQUENCED].action,
        Capability.PROBING: RESUME[Found.INTENDED, Capability.PROBING].action,
    }
    assert asked == {
        Capability.TRANSACTIONAL: Action.ASK_PROGRESS,
        Capability.SEQUENCED: Action.ASK_TAIL,
        Capability.PROBING: Action.ASK_ARRIVED,
    }


@pytest.mark.rows("S21")
def test_every_policy_of_doubt_has_a_remedy_of_its_own() -> None:
    assert DOUBT.keys() == set(OnDoubt)
    assert sorted(rule.remedy for rule in DOUBT.values()) == sorted(Remedy)


@pytest.mark.parametrize("policy", OnDoubt)
def test_only_who_sends_again_or_asks_waits_for_a_zombie(policy: OnDoubt) -> None:
    rule = DOUBT[policy]
    assert rule.waits == (rule.remedy in (Remedy.SEND, Remedy.ASK))


@pytest.mark.parametrize("state", ParkedState)
def test_a_parked_state_is_final_when_nothing_waits_for_anybody(state: ParkedState) -> None:
    somebody_acts = {"held", "rejected", "waiting", "resend", "sending"}
    assert state.final == (state.value not in somebody_acts)
