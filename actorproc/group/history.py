"""The history of a host: a Parquet file with samples of its partitions over the last day, rewritten each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_origin

import msgspec
import pyarrow as pa

from actorproc.config.settings import Settings
from actorproc.errors import CorruptObject
from actorproc.storage.document import Document
from actorproc.storage.parquet import footer_from, open_parquet, write_parquet

KEPT = 86_400.0
"""Seconds that a sample is kept, and the file of a host that has ended: a day."""

MOST_SAMPLES = 1_440
"""Samples in a file. With `history_interval` below a minute they do not reach back a day."""

SAMPLES = pa.schema(
    [
        pa.field("time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("lag", pa.int64()),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("dead_letters", pa.int64(), nullable=False),
        pa.field("trouble", pa.string()),
    ]
)
"""A row for each partition that ran on the host at a time. `lag`: the highest since the sample before. `records` and
`dead_letters`: those since the sample before. `trouble`: see `partition.statistics.TroubleKind`."""

_ENTRY = "actorproc.life"

Value = bool | int | float | str


class Life(Document, frozen=True):
    """One life of a host, in the footer of its file. `started`: seconds since 1970, by its clock."""

    host: str
    started: float
    interval: float
    """Seconds between two samples."""
    release: str
    """Of the actorproc that it runs."""
    app_version: str = ""
    handler: str = ""
    settings: Mapping[str, Value] = {}
    """Those that differ from their defaults. Never texts that the user chooses freely, which may be secret."""


def telling_settings(settings: Settings) -> dict[str, Value]:
    """The settings for `Life`."""
    found = {}
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        is_safe = isinstance(value, bool | int | float) or get_origin(field.annotation) is Literal
        if is_safe and field.repr and value != field.default:
            found[name] = value
    return found


def encode_history(life: Life, samples: pa.Table) -> bytes:
    """The file."""
    return write_parquet(samples, {_ENTRY: life.to_json().decode()})


def decode_history(key: str, body: bytes) -> tuple[Life, pa.Table]:
    """The content of a file.

    Raises:
        CorruptObject: it is none, or written by a newer actorproc.
    """
    try:
        file = open_parquet(body)
        entry = footer_from(key, file.metadata).metadata.get(_ENTRY, "")
        return Life.from_json(key, entry), file.read().select(SAMPLES.names).cast(SAMPLES)
    except (pa.ArrowException, OSError, KeyError, ValueError, msgspec.DecodeError) as error:
        raise CorruptObject.unreadable(key, error) from None
