"""The ledger records what was done: its verbs and types for other rooms, and the stores."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.ledger.client import LedgerClient
    from semel.ledger.inspect.check import check_ledger
    from semel.ledger.inspect.ledger import TABLES, Ledger
    from semel.ledger.inspect.listing import Problem
    from semel.ledger.inspect.summary import LastResend, PipelineSummary, SinkSummary
    from semel.ledger.inspect.trace import EntityTrace, Trace
    from semel.ledger.journal import (
        COUNTERS,
        FORGOT,
        JOURNAL_TABLE,
        MET,
        Entry,
        Journal,
        Operator,
        SnapshotFigures,
        State,
        journal_updates,
        read_unsure,
        require_counts,
        require_reached,
        sets_in,
        unsure_of,
        watermark_of,
    )
    from semel.ledger.keys import (
        EVENTS_TABLE,
        HEADS_TABLE,
        OPEN_TABLE,
        PARKED_TABLE,
        STREAMS_TABLE,
        key_number,
        key_text,
        make_key,
        make_prefix,
        split_key,
    )
    from semel.ledger.payloads import DamagedRow, decode_row, read_row, sift_rows
    from semel.ledger.rows import HeadRow, Judged, OpenRow, ParkedRow, PartitionRow, SpanRow
    from semel.ledger.store.opening import SCHEMA_KEY, open_store
    from semel.ledger.stream_rows import MARKERS_TABLE, MarkerHead, MarkerRow
    from semel.ledger.verbs.batch_jobs import compare_batch, finish_batch, finished_batch
    from semel.ledger.verbs.complete import Report
    from semel.ledger.verbs.divergence import is_replayed_next, judge_minibatch
    from semel.ledger.verbs.generations import (
        Fold,
        Leftover,
        close_partition,
        is_unswept,
        take_leftovers,
    )
    from semel.ledger.verbs.open import NO_TOPIC_IDS, Minibatches, OpenMinibatch, OpenRequest
    from semel.ledger.verbs.open_checks import (
        UNKNOWN_SOURCES,
        Sources,
        next_offset,
        starting_offsets,
    )
    from semel.ledger.verbs.parked import (
        NO_PARKS,
        Entity,
        HeadMoved,
        Heads,
        Parks,
        fill_parked,
        head_key,
        next_parked,
        note_doubt,
        parked_key,
        plan_parking,
        read_heads,
        read_parked,
        resolve_parked,
    )
    from semel.ledger.verbs.partitions import Claimant, PartitionClaim, refuse_other_keys
    from semel.ledger.verbs.pruning import OUTCOMES_TABLE, REMEMBER_S, OutcomeRow, Pruning
    from semel.ledger.verbs.rescale import rescale_pipeline
    from semel.ledger.verbs.resends import SENT_AGAIN, WHOLE_SINK, Claimed, Resends, SlotRow
    from semel.ledger.verbs.runs import (
        OWNERS_TABLE,
        PIPELINES_TABLE,
        ROUTING,
        STAGE_OF,
        Finished,
        OwnerRow,
        Owners,
        forget_start,
        read_description,
        register_start,
        starting_pipeline,
    )
    from semel.ledger.verbs.sequences import (
        SEQUENCES_TABLE,
        Mark,
        SequenceRow,
        Standing,
        advance_sequence,
        read_sequences,
    )

__all__ = [
    "COUNTERS",
    "EVENTS_TABLE",
    "FORGOT",
    "HEADS_TABLE",
    "JOURNAL_TABLE",
    "MARKERS_TABLE",
    "MET",
    "NO_PARKS",
    "NO_TOPIC_IDS",
    "OPEN_TABLE",
    "OUTCOMES_TABLE",
    "OWNERS_TABLE",
    "PARKED_TABLE",
    "PIPELINES_TABLE",
    "REMEMBER_S",
    "ROUTING",
    "SCHEMA_KEY",
    "SENT_AGAIN",
    "SEQUENCES_TABLE",
    "STAGE_OF",
    "STREAMS_TABLE",
    "TABLES",
    "UNKNOWN_SOURCES",
    "WHOLE_SINK",
    "Claimant",
    "Claimed",
    "DamagedRow",
    "Entity",
    "EntityTrace",
    "Entry",
    "Finished",
    "Fold",
    "HeadMoved",
    "HeadRow",
    "Heads",
    "Journal",
    "Judged",
    "LastResend",
    "Ledger",
    "LedgerClient",
    "Leftover",
    "Mark",
    "MarkerHead",
    "MarkerRow",
    "Minibatches",
    "OpenMinibatch",
    "OpenRequest",
    "OpenRow",
    "Operator",
    "OutcomeRow",
    "OwnerRow",
    "Owners",
    "ParkedRow",
    "Parks",
    "PartitionClaim",
    "PartitionRow",
    "PipelineSummary",
    "Problem",
    "Pruning",
    "Report",
    "Resends",
    "SequenceRow",
    "SinkSummary",
    "SlotRow",
    "SnapshotFigures",
    "Sources",
    "SpanRow",
    "Standing",
    "State",
    "Trace",
    "advance_sequence",
    "check_ledger",
    "close_partition",
    "compare_batch",
    "decode_row",
    "fill_parked",
    "finish_batch",
    "finished_batch",
    "forget_start",
    "head_key",
    "is_replayed_next",
    "is_unswept",
    "journal_updates",
    "judge_minibatch",
    "key_number",
    "key_text",
    "make_key",
    "make_prefix",
    "next_offset",
    "next_parked",
    "note_doubt",
    "open_store",
    "parked_key",
    "plan_parking",
    "read_description",
    "read_heads",
    "read_parked",
    "read_row",
    "read_sequences",
    "read_unsure",
    "refuse_other_keys",
    "register_start",
    "require_counts",
    "require_reached",
    "rescale_pipeline",
    "resolve_parked",
    "sets_in",
    "sift_rows",
    "split_key",
    "starting_offsets",
    "starting_pipeline",
    "take_leftovers",
    "unsure_of",
    "watermark_of",
]

# Imported when first used: a worker starts with the verbs that it needs. What a store needs is in
# `semel.ledger.store`.
_HOMES = {
    "semel.ledger.client": ("LedgerClient",),
    "semel.ledger.inspect.check": ("check_ledger",),
    "semel.ledger.inspect.ledger": ("TABLES", "Ledger"),
    "semel.ledger.inspect.listing": ("Problem",),
    "semel.ledger.inspect.summary": ("LastResend", "PipelineSummary", "SinkSummary"),
    "semel.ledger.inspect.trace": ("EntityTrace", "Trace"),
    "semel.ledger.journal": (
        "COUNTERS",
        "FORGOT",
        "JOURNAL_TABLE",
        "MET",
        "Entry",
        "Journal",
        "Operator",
        "SnapshotFigures",
        "State",
        "journal_updates",
        "read_unsure",
        "require_counts",
        "require_reached",
        "sets_in",
        "unsure_of",
        "watermark_of",
    ),
    "semel.ledger.keys": (
        "EVENTS_TABLE",
        "HEADS_TABLE",
        "OPEN_TABLE",
        "PARKED_TABLE",
        "STREAMS_TABLE",
        "key_number",
        "key_text",
        "make_key",
        "make_prefix",
        "split_key",
    ),
    "semel.ledger.payloads": ("DamagedRow", "decode_row", "read_row", "sift_rows"),
    "semel.ledger.rows": ("HeadRow", "Judged", "OpenRow", "ParkedRow", "PartitionRow", "SpanRow"),
    "semel.ledger.store.opening": ("SCHEMA_KEY", "open_store"),
    "semel.ledger.stream_rows": ("MARKERS_TABLE", "MarkerHead", "MarkerRow"),
    "semel.ledger.verbs.batch_jobs": ("compare_batch", "finish_batch", "finished_batch"),
    "semel.ledger.verbs.complete": ("Report",),
    "semel.ledger.verbs.divergence": ("is_replayed_next", "judge_minibatch"),
    "semel.ledger.verbs.generations": (
        "Fold",
        "Leftover",
        "close_partition",
        "is_unswept",
        "take_leftovers",
    ),
    "semel.ledger.verbs.open": ("NO_TOPIC_IDS", "Minibatches", "OpenMinibatch", "OpenRequest"),
    "semel.ledger.verbs.open_checks": (
        "UNKNOWN_SOURCES",
        "Sources",
        "next_offset",
        "starting_offsets",
    ),
    "semel.ledger.verbs.parked": (
        "NO_PARKS",
        "Entity",
        "HeadMoved",
        "Heads",
        "Parks",
        "fill_parked",
        "head_key",
        "next_parked",
        "note_doubt",
        "parked_key",
        "plan_parking",
        "read_heads",
        "read_parked",
        "resolve_parked",
    ),
    "semel.ledger.verbs.partitions": ("Claimant", "PartitionClaim", "refuse_other_keys"),
    "semel.ledger.verbs.pruning": ("OUTCOMES_TABLE", "REMEMBER_S", "OutcomeRow", "Pruning"),
    "semel.ledger.verbs.rescale": ("rescale_pipeline",),
    "semel.ledger.verbs.resends": ("SENT_AGAIN", "WHOLE_SINK", "Claimed", "Resends", "SlotRow"),
    "semel.ledger.verbs.runs": (
        "OWNERS_TABLE",
        "PIPELINES_TABLE",
        "ROUTING",
        "STAGE_OF",
        "Finished",
        "OwnerRow",
        "Owners",
        "forget_start",
        "read_description",
        "register_start",
        "starting_pipeline",
    ),
    "semel.ledger.verbs.sequences": (
        "SEQUENCES_TABLE",
        "Mark",
        "SequenceRow",
        "Standing",
        "advance_sequence",
        "read_sequences",
    ),
}
"""The names of each module."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import what a name stands for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'semel.ledger' has no attribute {name!r}")
    found: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List all names, imported or not."""
    return sorted({*globals(), *__all__})
