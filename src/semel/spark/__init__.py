"""Delivery on Spark: the only room that imports pyspark."""

from semel.spark import session, versions
from semel.spark.batch_job import Delivered
from semel.spark.deliver import deliver, deliver_batch
from semel.spark.repartition import arranged
from semel.spark.session import make_session
from semel.spark.sources import register
from semel.spark.versions import kafka_connector, scala

__all__ = [
    "Delivered",
    "arranged",
    "deliver",
    "deliver_batch",
    "kafka_connector",
    "make_session",
    "register",
    "scala",
    "session",
    "versions",
]
