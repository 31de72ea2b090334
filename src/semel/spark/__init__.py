"""On Spark: the only room that names pyspark."""
