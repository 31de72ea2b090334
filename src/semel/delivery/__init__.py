"""Runs the protocol: the delivery of one partition and the driver's part, without Spark."""

from semel.delivery.assignment import Assignment
from semel.delivery.driver import Driver
from semel.delivery.observer import (
    LogObserver,
    MinibatchCompleted,
    Observer,
    Observers,
    QueryProgressed,
)
from semel.delivery.pacing import Pacing
from semel.delivery.partition import PartitionDelivery
from semel.delivery.spec import PipelineSpec, only_look, refuse_while_looking
from semel.runtime import Runtime

__all__ = [
    "Assignment",
    "Driver",
    "LogObserver",
    "MinibatchCompleted",
    "Observer",
    "Observers",
    "Pacing",
    "PartitionDelivery",
    "PipelineSpec",
    "QueryProgressed",
    "Runtime",
    "only_look",
    "refuse_while_looking",
]
