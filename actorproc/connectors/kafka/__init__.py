"""Topics of Apache Kafka, and of services that speak its protocol, as a source. Needs the extra `kafka`."""

from __future__ import annotations

from actorproc.runtime.requirements import how_to_install

try:
    import confluent_kafka  # noqa: F401
except ImportError:
    raise ImportError(f"a source of Kafka topics needs confluent-kafka: {how_to_install('kafka')}") from None

from actorproc.connectors.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
