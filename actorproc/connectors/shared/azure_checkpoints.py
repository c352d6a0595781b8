"""Checkpoints of Azure's event processors, kept as blobs: where a processor that comes from them begins.

The layout is that of the checkpoint stores of Azure's SDKs, the same in all languages: a blob
`NAMESPACE/HUB/GROUP/checkpoint/PARTITION` in small letters, whose metadata hold the `sequencenumber` of the last
event that was processed. An `offset` there is no offset of Kafka's; Kafka's is the sequence number
(https://github.com/Azure/azure-event-hubs-for-kafka/issues/130).
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qs, urlsplit

from actorproc.errors import SourceError, UsageError
from actorproc.runtime.requirements import how_to_install

CHECKPOINTS = "eventhubs-checkpoints:"
"""Begins the URL of the blob container in which Azure's event processors keep their checkpoints."""

FORM = f"{CHECKPOINTS}https://ACCOUNT.blob.core.windows.net/CONTAINER[?group=NAME]"
STORAGE = "AZURE_STORAGE_CONNECTION_STRING"
DEFAULT_GROUP = "$Default"


class AzureCheckpoints:
    """Reads the checkpoints of one namespace and consumer group.

    Args:
        url: of the blob container, with the consumer group as its query; default: `$Default`.
        namespace: host name of the Event Hubs namespace.

    Raises:
        UsageError: the URL is not of this form, or the extra `azure` is not installed.
    """

    def __init__(self, url: str, namespace: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query, keep_blank_values=True)
        if not parts.scheme.startswith("http") or not parts.path.strip("/") or not query.keys() <= {"group"}:
            raise UsageError(
                f"start_from: write {FORM}. Credentials come from {STORAGE} in the environment, else from Microsoft "
                "Entra"
            )
        self._url = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._prefix = (namespace, query.get("group", [DEFAULT_GROUP])[0])
        self._container = _container(self._url)

    def read(self, hub: str) -> dict[int, int]:
        """Sequence number of the last processed event, by the partition's number.

        Raises:
            SourceError: the blobs cannot be read, or one has no sequence number.
        """
        from azure.core.exceptions import AzureError

        namespace, group = self._prefix
        prefix = f"{namespace}/{hub}/{group}/checkpoint/".lower()
        try:
            blobs = list(self._container.list_blobs(name_starts_with=prefix, include=["metadata"]))
        except AzureError as error:
            raise SourceError(f"checkpoints at {self._url} cannot be read: {str(error).splitlines()[0]}") from None
        return {int(blob.name.removeprefix(prefix)): _sequence(blob) for blob in blobs}


def _sequence(blob: Any) -> int:
    try:
        return int((blob.metadata or {})["sequencenumber"])
    except (KeyError, ValueError):
        raise SourceError(f"checkpoint {blob.name} has no sequencenumber in its metadata") from None


def _container(url: str) -> Any:
    try:
        from azure.identity import DefaultAzureCredential
        from azure.storage.blob import ContainerClient
    except ImportError:
        raise UsageError(f"start_from {FORM} needs azure-storage-blob: {how_to_install('azure')}") from None
    if connection := os.environ.get(STORAGE):
        return ContainerClient.from_connection_string(connection, url.rstrip("/").rpartition("/")[2])
    return ContainerClient.from_container_url(url, credential=DefaultAzureCredential())
