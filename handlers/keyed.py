"""Finds the key of each record, for ready-made handlers that work by key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.handler.keyed_state import Key
from actorproc.records import Batch, Record


class KeyOptions(BaseModel):
    """Options of handlers that work by key."""

    model_config = ConfigDict(extra="forbid")

    key: str | None = Field(None, description="Field of the decoded value that holds the key; default: record's key.")


def record_key_of(key: Key, ctx: PartitionInfo) -> str | None:
    """`record_key` of a handler whose state has the keys of `keyed`."""
    return key if ctx.options.key is None and isinstance(key, str) else None


def keyed(
    batch: Batch, ctx: PartitionContext, field: str | None, *, decode: bool = False
) -> Iterator[tuple[Record, str, Any]]:
    """Yield each record with its key as text and its decoded value. Records without a key fail, and are not yielded.

    Args:
        field: of the value that holds the key; None: the record's key counts.
        decode: whether the value is wanted. Without it and without `field` it is not decoded, and None.
    """
    decoded = ctx.decode(batch) if decode or field is not None else ((record, None) for record in batch)
    for record, value in decoded:
        try:
            key = _text_key(record) if field is None else _field_key(value, field)
        except ValueError as error:
            ctx._refuse(record, error)
        else:
            yield record, key, value


def _text_key(record: Record) -> str:
    if record.key is None:
        raise ValueError("the record has no key; the option key names a field of the value instead")
    return record.key.decode()


def _field_key(value: Any, field: str) -> str:
    found = value.get(field) if isinstance(value, dict) else None
    if found is None:
        raise ValueError(f"the value has no field {field!r}, which the option key names")
    if isinstance(found, list | dict):
        raise ValueError(f"field {field!r}, which the option key names, is {found!r:.80}, and not a single value")  # noqa: TRY004
    return found if isinstance(found, str) else str(found)


def time_of(record: Record) -> datetime:
    """Raises ValueError: the record has no timestamp."""
    if record.timestamp is None:
        raise ValueError("the record has no timestamp")
    return record.timestamp
