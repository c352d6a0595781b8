"""Documents of a change feed as the columns of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from actorproc.records import Batch

Document = Mapping[str, Any]


def lsn_of_document(document: Document) -> int:
    """Number of the transaction that wrote this version."""
    metadata = document.get("metadata")
    return int(metadata["lsn"] if _is_version(document) and metadata else document["_lsn"])


def to_batch(partition: str, documents: Sequence[Document], sequences: Sequence[int], paths: Sequence[str]) -> Batch:
    """A batch of these documents.

    Value: the document as JSON, or in mode `all` the change, with `current`, `previous` and `metadata`. Key: the
    partition key. Timestamp: of the write, in whole seconds.

    Args:
        paths: of the partition key.
    """
    return Batch.of(
        partition,
        [orjson.dumps(document) for document in documents],
        sequences,
        keys=[_key(document, paths) for document in documents],
        headers=[_headers(document) for document in documents],
        timestamps=[_time(document) for document in documents],
    )


def _is_version(document: Document) -> bool:
    return "_lsn" not in document


def _key(document: Document, paths: Sequence[str]) -> bytes | None:
    """A text as it is; of several paths, or another value, JSON."""
    body: Any = document
    if _is_version(document):
        body = document.get("current") or document.get("previous") or document["metadata"].get("partitionKey") or {}
    values = [_at(body, path) for path in paths]
    key = values[0] if len(values) == 1 else values
    return key.encode() if isinstance(key, str) else None if key is None else orjson.dumps(key)


def _at(body: Any, path: str) -> Any:
    for name in path.strip("/").split("/"):
        body = body.get(name.strip('"')) if isinstance(body, Mapping) else None
    return body


def _headers(document: Document) -> list[tuple[str, bytes]]:
    return [("operation", document["metadata"]["operationType"].encode())] if _is_version(document) else []


def _time(document: Document) -> datetime | None:
    seconds = document["metadata"].get("crts") if _is_version(document) else document.get("_ts")
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
