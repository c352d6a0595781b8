"""Services that speak Kafka's protocol: the address and the librdkafka properties that their URLs stand for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from actorproc.connectors.kafka.address import KafkaAddress, address_of
from actorproc.connectors.kafka.entra import EntraTokens
from actorproc.connectors.kafka.properties import Properties
from actorproc.errors import UsageError

KAFKA_FORM = "kafka://BROKER:PORT[,BROKER:PORT...]/TOPIC[,TOPIC...] or /^REGEX"
EVENT_HUBS_FORM = "eventhubs://NAMESPACE/HUB[,HUB...]"
OCI_FORM = "oci-streaming://REGION/STREAM[,STREAM...]?pool=OCID"

CONNECTION_STRING = "EVENTHUBS_CONNECTION_STRING"
OCI_USER = "OCI_STREAMING_USER"
OCI_TOKEN = "OCI_STREAMING_AUTH_TOKEN"  # noqa: S105  # the name of the variable


def parse_url(url: str, given: Mapping[str, Any] | None = None) -> KafkaAddress:
    """The address of a `kafka://`, `eventhubs://` or `oci-streaming://` URL.

    Args:
        given: librdkafka properties of the user. A login among them replaces the one from the environment.

    Raises:
        UsageError: the URL is not of its form, or the login is missing. Names the variable to set.
    """
    preset = PRESETS[url.partition("://")[0]]
    return preset(url, given or {})


def _kafka(url: str, given: Mapping[str, Any]) -> KafkaAddress:
    return address_of(url, KAFKA_FORM)


def _event_hubs(url: str, given: Mapping[str, Any]) -> KafkaAddress:
    """The Kafka endpoint of Azure Event Hubs, with the values that Microsoft documents for librdkafka.

    https://learn.microsoft.com/azure/event-hubs/apache-kafka-configurations
    """
    address = address_of(url, EVENT_HUBS_FORM)
    host = address.brokers if "." in address.brokers else f"{address.brokers}.servicebus.windows.net"
    properties: Properties = {
        "security.protocol": "SASL_SSL",
        "socket.keepalive.enable": True,  # Azure closes connections that are idle for four minutes
        "metadata.max.age.ms": 180_000,
    }
    broker = host if ":" in host else f"{host}:9093"
    return replace(address, brokers=broker, properties=properties | _event_hubs_login(host, given))


def _event_hubs_login(host: str, given: Mapping[str, Any]) -> Properties:
    connection_string = given.get("sasl.password") or os.environ.get(CONNECTION_STRING)
    if connection_string is not None:
        return {"sasl.mechanism": "PLAIN", "sasl.username": "$ConnectionString", "sasl.password": connection_string}
    if given.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
        return {}
    tokens = EntraTokens(host.partition(":")[0], f"set {CONNECTION_STRING} in the environment")
    return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": tokens}


def _oci_streaming(url: str, given: Mapping[str, Any]) -> KafkaAddress:
    """The Kafka endpoint of OCI Streaming.

    https://docs.oracle.com/iaas/Content/Streaming/Tasks/kafkacompatibility_topic-Configuration.htm
    """
    place, _, query = url.partition("?")
    address = address_of(place, OCI_FORM)
    pools = parse_qs(query).get("pool", [])
    if len(pools) != 1:
        raise UsageError(f"source {url!r}: write {OCI_FORM}")
    region = address.brokers
    broker = region if "." in region else f"streaming.{region}.oci.oraclecloud.com"
    properties: Properties = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    if "sasl.username" not in given:
        user = _variable(url, OCI_USER, "the tenancy and the user, as TENANCY/USER or TENANCY/DOMAIN/USER")
        properties["sasl.username"] = f"{user}/{pools[0]}"
    if "sasl.password" not in given:
        properties["sasl.password"] = _variable(url, OCI_TOKEN, "an auth token of the user")
    return replace(address, brokers=broker if ":" in broker else f"{broker}:9092", properties=properties)


def _variable(url: str, name: str, meaning: str) -> str:
    if value := os.environ.get(name):
        return value
    raise UsageError(f"source {url}: set {name} in the environment to {meaning}")


PRESETS: Mapping[str, Callable[[str, Mapping[str, Any]], KafkaAddress]] = {
    "kafka": _kafka,
    "eventhubs": _event_hubs,
    "oci-streaming": _oci_streaming,
}
"""By the scheme of the URL."""
