"""Runs the protocol: the delivery of one partition and the driver's part, without Spark."""

from semel.delivery.assignment import Assignment
from semel.delivery.driver import Driver
from semel.delivery.log_lines import JsonLogs, summary
from semel.delivery.observer import (
    DeliveryEvent,
    EventResent,
    Figures,
    HeartbeatWritten,
    LogObserver,
    MarkerChosen,
    MinibatchCompleted,
    MinibatchOpened,
    Observer,
    Observers,
    PartitionFigures,
    QueryProgressed,
)
from semel.delivery.pacing import Pacing
from semel.delivery.partition import PartitionDelivery
from semel.delivery.spec import (
    FILES_LIMIT,
    PipelineSpec,
    limits_of,
    only_look,
    refuse_while_looking,
)
from semel.runtime import Runtime

__all__ = [
    "FILES_LIMIT",
    "Assignment",
    "DeliveryEvent",
    "Driver",
    "EventResent",
    "Figures",
    "HeartbeatWritten",
    "JsonLogs",
    "LogObserver",
    "MarkerChosen",
    "MinibatchCompleted",
    "MinibatchOpened",
    "Observer",
    "Observers",
    "Pacing",
    "PartitionDelivery",
    "PartitionFigures",
    "PipelineSpec",
    "QueryProgressed",
    "Runtime",
    "limits_of",
    "only_look",
    "refuse_while_looking",
    "summary",
]
