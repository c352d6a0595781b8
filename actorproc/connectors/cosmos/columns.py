"""Documents of a change feed as the columns of a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson

from actorproc.errors import SourceError
from actorproc.records import Batch
from actorproc.sources.refusals import each

Document = Mapping[str, Any]


def lsn_of_document(document: Document) -> int:
    """Number of the transaction that wrote this version. Raises SourceError: there is none."""
    metadata = document.get("metadata")
    try:
        return int(metadata["lsn"] if _is_version(document) and metadata else document["_lsn"])
    except (LookupError, TypeError, ValueError):  # without it nobody can say which documents are read
        raise SourceError("the service gave a document without the number of its transaction (_lsn)") from None


def to_batch(partition: str, documents: Sequence[Document], sequences: Sequence[int], paths: Sequence[str]) -> Batch:
    """A batch of these documents.

    Value: the document as JSON, or in mode `all` the change, with `current`, `previous` and `metadata`. Key: the
    partition key. Timestamp: of the write, in whole seconds. A document that has no place in the columns is refused.

    Args:
        paths: of the partition key.
    """
    refused: dict[int, str] = {}
    headers = each(_headers, documents, refused, "its operation")
    return Batch.of(
        partition,
        [
            _escaped(document) if value is None else value
            for document, value in zip(documents, each(_json, documents, refused, "its text"), strict=True)
        ],
        sequences,
        keys=each(partial(_key, paths=paths), documents, refused, "its partition key"),
        headers=[one or [] for one in headers],
        timestamps=each(_time, documents, refused, "its time"),
    ).refusing(refused)


def _json(document: object) -> bytes:
    """Raises UnicodeEncodeError: a text has half a surrogate, which JSON can escape and UTF-8 cannot encode."""
    try:
        return orjson.dumps(document)
    except TypeError:  # an integer of more than 64 bits, nested more than 254 deep
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _escaped(document: Document) -> bytes | None:
    """The document as the service wrote it, for a dead letter."""
    with suppress(RecursionError):
        return json.dumps(document, separators=(",", ":")).encode()
    return None


def _is_version(document: Document) -> bool:
    return "_lsn" not in document


def _key(document: Document, paths: Sequence[str]) -> bytes | None:
    """A text as it is; of several paths, or another value, JSON."""
    body: Any = document
    if _is_version(document):
        body = document.get("current") or document.get("previous") or document["metadata"].get("partitionKey") or {}
    values = [_at(body, path) for path in paths]
    key = values[0] if len(values) == 1 else values
    return key.encode() if isinstance(key, str) else None if key is None else _json(key)


def _at(body: Any, path: str) -> Any:
    for name in path.strip("/").split("/"):
        body = body.get(name.strip('"')) if isinstance(body, Mapping) else None
    return body


def _headers(document: Document) -> list[tuple[str, bytes]]:
    return [("operation", document["metadata"]["operationType"].encode())] if _is_version(document) else []


def _time(document: Document) -> datetime | None:
    seconds = document["metadata"].get("crts") if _is_version(document) else document.get("_ts")
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
