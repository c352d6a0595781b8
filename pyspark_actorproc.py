"""Where Spark finds `format("actorproc")`: it looks for modules named `pyspark_*` and takes their `DefaultSource`."""

from actorproc.spark.data_source import ActorprocSource as DefaultSource

__all__ = ["DefaultSource"]
