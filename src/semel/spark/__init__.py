"""Delivery on Spark: the only room that imports pyspark."""

from semel.spark import session, versions
from semel.spark.batch_job import Delivered
from semel.spark.checkpoints import resolve as ledger_url
from semel.spark.deliver import deliver, deliver_batch
from semel.spark.frames.repartition import arranged
from semel.spark.progress import delivered_by
from semel.spark.queries import headline, jvm_is_gone, read_source, run_sql, why_failed
from semel.spark.session import make_session, pipeline_session
from semel.spark.sources import register
from semel.spark.starting import StandbyEnded
from semel.spark.stopping import stop, stop_in_order
from semel.spark.versions import kafka_connector, scala

__all__ = [
    "Delivered",
    "StandbyEnded",
    "arranged",
    "deliver",
    "deliver_batch",
    "delivered_by",
    "headline",
    "jvm_is_gone",
    "kafka_connector",
    "ledger_url",
    "make_session",
    "pipeline_session",
    "read_source",
    "register",
    "run_sql",
    "scala",
    "session",
    "stop",
    "stop_in_order",
    "versions",
    "why_failed",
]
