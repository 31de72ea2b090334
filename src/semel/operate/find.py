"""What the ledger knows of one event or one entity, by the names that a person types.

Always true: an answer is never stronger than the record behind it.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from semel.operate.audit import with_audit
from semel.operate.event_names import read_moment, read_value
from semel.operate.ledgers import choose_pipeline, choose_sinks
from semel.operate.times import utc_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.events import EventID
    from semel.ledger import EntityTrace, Ledger, Trace

_UNSEEN = ("not seen", "pending")


def find_event(
    ledger: Ledger,
    entity: str,
    event: Sequence[str],
    pipeline: str | None = None,
    sink: str | None = None,
    audit: str | None = None,
) -> list[Trace]:
    """Return what the ledger knows of one event at each sink. `event` has one text for each column
    of the event id; digits are a number or a text, and a date or a timestamp is ISO 8601. The audit
    log in the folder `audit` is asked where the ledger has no record of the event itself.

    Raises `ConfigurationError` when the pipeline or the sink does not exist or is not unique, and
    `LedgerError` when a row that the answer needs is damaged.
    """
    name = choose_pipeline(ledger, pipeline)
    sinks = choose_sinks(ledger, name, sink)
    ids = _possible_ids(event, ledger.id_forms(name))
    found = [_find_at(ledger, name, entity, ids, at) for at in sinks]
    return found if audit is None else with_audit(ledger, audit, name, entity, ids, found)


def find_entity(
    ledger: Ledger, entity: str, pipeline: str | None = None, sink: str | None = None
) -> list[EntityTrace]:
    """Return what the ledger knows of one entity at each sink. Raises as `find_event` does."""
    name = choose_pipeline(ledger, pipeline)
    sinks = choose_sinks(ledger, name, sink)
    return [each for at in sinks for each in ledger.about(name, entity, at)]


def is_seen(trace: Trace) -> bool:
    """Whether the ledger knows more of an event than that its partition may be pending."""
    return trace.state not in _UNSEEN


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """Return what is known of an event as a JSON object."""
    return {
        "sink": trace.sink,
        "state": trace.state,
        "when": utc_text(trace.at),
        "minibatch": None if trace.minibatch is None else str(trace.minibatch),
        "attempt": trace.attempt,
        "osn": None if trace.osn is None else list(trace.osn),
        "why": trace.why,
    }


def entity_to_json(known: EntityTrace) -> dict[str, Any]:
    """Return what is known of an entity as a JSON object."""
    return {
        "sink": known.sink,
        "handled_up_to": known.upto,
        "handled_ids": known.ids.to_json(),
        "parked": [
            {"id": row.event, "state": row.state.value, "minibatch": str(row.minibatch)}
            for _, row in known.parked
        ],
        "blocked": bool(known.heads),
        "waiting": known.waiting,
    }


def _possible_ids(typed: Sequence[str], forms: Sequence[str | None]) -> list[EventID]:
    """Return every id that may be meant, the likeliest first."""
    known = forms if len(forms) == len(typed) else [None] * len(typed)
    meanings = [
        [*read_moment(text, form), *read_value(text)]
        for text, form in zip(typed, known, strict=True)
    ]
    return [each if len(each) > 1 else each[0] for each in product(*meanings)]


def _find_at(ledger: Ledger, pipeline: str, entity: str, ids: list[EventID], sink: str) -> Trace:
    """Return the first id that the ledger has seen; if none, the answer for the likeliest."""
    found = [trace for each in ids for trace in ledger.find(pipeline, entity, each, sink)]
    return next(filter(is_seen, found), found[0])
