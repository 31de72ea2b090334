"""Delivery on Spark: the only room that imports pyspark."""

from semel.spark import versions
from semel.spark.batch_job import Delivered
from semel.spark.checkpoints import resolve as ledger_url
from semel.spark.choose_identity import Named, implied
from semel.spark.deliver import deliver, deliver_batch
from semel.spark.queries import drain, headline, read_source, run_sql, why_failed
from semel.spark.repartition import arranged
from semel.spark.session import make_session, pipeline_session
from semel.spark.versions import kafka_connector, scala

__all__ = [
    "Delivered",
    "Named",
    "arranged",
    "deliver",
    "deliver_batch",
    "drain",
    "headline",
    "implied",
    "kafka_connector",
    "ledger_url",
    "make_session",
    "pipeline_session",
    "read_source",
    "run_sql",
    "scala",
    "versions",
    "why_failed",
]
