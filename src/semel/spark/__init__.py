"""Delivery on Spark: the only room that imports pyspark."""

from semel.spark.batch_job import Delivered
from semel.spark.deliver import deliver, deliver_batch
from semel.spark.session import make_session

__all__ = ["Delivered", "deliver", "deliver_batch", "make_session"]
