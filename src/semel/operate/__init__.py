"""What an operator asks of a ledger and decides: typed answers for the command line and others."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.operate.audit import prune_audit
    from semel.operate.bulk.decisions import (
        BulkDecision,
        resolve_many,
    )
    from semel.operate.bulk.parked_filter import (
        ParkedFilter,
        read_filter,
    )
    from semel.operate.bulk.transfer import (
        ParkedImport,
        export_parked,
        import_parked,
    )
    from semel.operate.checks import Check, Health
    from semel.operate.doctor import check_java, diagnose
    from semel.operate.event_names import write_id
    from semel.operate.find import entity_to_json, find_entity, find_event, is_seen, trace_to_json
    from semel.operate.inboxes import (
        EventFields,
        InboxStatus,
        PutEvents,
        event_to_json,
        follow_events,
        list_inboxes,
        newest_events,
        put_events,
    )
    from semel.operate.ledgers import (
        LedgerCheck,
        check_rows,
        choose_pipeline,
        count_rows,
        open_ledger,
        refuse_damaged,
    )
    from semel.operate.outcomes import Outcome, Outcomes
    from semel.operate.pages.advice import Advice, Severity
    from semel.operate.pages.overview import (
        HeartbeatWatch,
        PipelineDetail,
        PipelineOverview,
        PipelinesPage,
        read_pipeline_detail,
        read_pipelines_page,
    )
    from semel.operate.pages.parked_page import (
        STATES,
        ParkedChoice,
        ParkedPage,
        list_parked,
        read_parked_at,
        read_parked_page,
        resolve_parked_at,
    )
    from semel.operate.parked import (
        ParkedEvent,
        ParkedEvents,
        read_parked_event,
        read_parked_events,
    )
    from semel.operate.resolve import JudgedMinibatch, ResolvedEvent, record_decision
    from semel.operate.status import (
        PacingStatus,
        PipelineStatus,
        RunState,
        SinkStatus,
        read_status,
        read_statuses,
        waits_for_a_person,
    )
    from semel.operate.stop import StoppedRun, stop_run
    from semel.operate.stopped.lifecycle import (
        ForgottenPipeline,
        RenamedPipeline,
        forget_pipeline,
        rename_pipeline,
    )
    from semel.operate.stopped.rescale import Rescaled, rescale_pipeline
    from semel.operate.stopped.reset import (
        ResetPartition,
        ResetPlan,
        reset_pipeline,
    )
    from semel.operate.times import age_s, utc_text

_HOMES = {
    "checks": ("Check", "Health"),
    "doctor": ("check_java", "diagnose"),
    "event_names": ("write_id",),
    "audit": ("prune_audit",),
    "find": ("entity_to_json", "find_entity", "find_event", "is_seen", "trace_to_json"),
    "inboxes": (
        "EventFields",
        "InboxStatus",
        "PutEvents",
        "event_to_json",
        "follow_events",
        "list_inboxes",
        "newest_events",
        "put_events",
    ),
    "ledgers": (
        "LedgerCheck",
        "check_rows",
        "choose_pipeline",
        "count_rows",
        "open_ledger",
        "refuse_damaged",
    ),
    "parked": (
        "ParkedEvent",
        "ParkedEvents",
        "read_parked_event",
        "read_parked_events",
    ),
    "stopped.lifecycle": (
        "ForgottenPipeline",
        "RenamedPipeline",
        "forget_pipeline",
        "rename_pipeline",
    ),
    "outcomes": ("Outcome", "Outcomes"),
    "pages.advice": ("Advice", "Severity"),
    "pages.overview": (
        "HeartbeatWatch",
        "PipelineDetail",
        "PipelineOverview",
        "PipelinesPage",
        "read_pipeline_detail",
        "read_pipelines_page",
    ),
    "pages.parked_page": (
        "STATES",
        "ParkedChoice",
        "ParkedPage",
        "list_parked",
        "read_parked_at",
        "read_parked_page",
        "resolve_parked_at",
    ),
    "stopped.rescale": ("Rescaled", "rescale_pipeline"),
    "resolve": ("JudgedMinibatch", "ResolvedEvent", "record_decision"),
    "status": (
        "PacingStatus",
        "PipelineStatus",
        "RunState",
        "SinkStatus",
        "read_status",
        "read_statuses",
        "waits_for_a_person",
    ),
    "stop": ("StoppedRun", "stop_run"),
    "times": ("age_s", "utc_text"),
    "bulk.decisions": (
        "BulkDecision",
        "resolve_many",
    ),
    "bulk.transfer": (
        "ParkedImport",
        "export_parked",
        "import_parked",
    ),
    "bulk.parked_filter": (
        "ParkedFilter",
        "read_filter",
    ),
    "stopped.reset": (
        "ResetPartition",
        "ResetPlan",
        "reset_pipeline",
    ),
}

__all__ = [
    "STATES",
    "Advice",
    "BulkDecision",
    "Check",
    "EventFields",
    "ForgottenPipeline",
    "Health",
    "HeartbeatWatch",
    "InboxStatus",
    "JudgedMinibatch",
    "LedgerCheck",
    "Outcome",
    "Outcomes",
    "PacingStatus",
    "ParkedChoice",
    "ParkedEvent",
    "ParkedEvents",
    "ParkedFilter",
    "ParkedImport",
    "ParkedPage",
    "PipelineDetail",
    "PipelineOverview",
    "PipelineStatus",
    "PipelinesPage",
    "PutEvents",
    "RenamedPipeline",
    "Rescaled",
    "ResetPartition",
    "ResetPlan",
    "ResolvedEvent",
    "RunState",
    "Severity",
    "SinkStatus",
    "StoppedRun",
    "age_s",
    "check_java",
    "check_rows",
    "choose_pipeline",
    "count_rows",
    "diagnose",
    "entity_to_json",
    "event_to_json",
    "export_parked",
    "find_entity",
    "find_event",
    "follow_events",
    "forget_pipeline",
    "import_parked",
    "is_seen",
    "list_inboxes",
    "list_parked",
    "newest_events",
    "open_ledger",
    "prune_audit",
    "put_events",
    "read_filter",
    "read_parked_at",
    "read_parked_event",
    "read_parked_events",
    "read_parked_page",
    "read_pipeline_detail",
    "read_pipelines_page",
    "read_status",
    "read_statuses",
    "record_decision",
    "refuse_damaged",
    "rename_pipeline",
    "rescale_pipeline",
    "reset_pipeline",
    "resolve_many",
    "resolve_parked_at",
    "stop_run",
    "trace_to_json",
    "utc_text",
    "waits_for_a_person",
    "write_id",
]


def __getattr__(name: str) -> object:
    """Import a name when it is first used, so that a command loads only its own modules."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"semel.operate.{module}"), name)
    raise AttributeError(f"module 'semel.operate' has no attribute {name!r}")
