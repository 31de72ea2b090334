"""Doing it: the protocol run for one partition, and the driver's part, without Spark."""

from semel.delivery.agreement import Agreement
from semel.delivery.assignment import Assignment
from semel.delivery.driver import Driver
from semel.delivery.partition import PartitionDelivery
from semel.delivery.surroundings import Surroundings

__all__ = ["Agreement", "Assignment", "Driver", "PartitionDelivery", "Surroundings"]
