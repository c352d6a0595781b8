"""State objects: a read returns the bytes that were written, or raises an error."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from actorproc.errors import CorruptObject
from actorproc.state.objects import Entries, decode_state, encode_state

ENTRIES = {
    "": Entries([b"a", b"b", b"c"], [b"1", None, b""], {b"a": 7.5}),
    "sessions": Entries([b"a"], [b"2"]),
}


def test_an_object_returns_the_written_state() -> None:
    assert decode_state("key", encode_state(ENTRIES)) == ENTRIES


def test_a_lost_row_is_found_by_the_checksum() -> None:
    file = pq.ParquetFile(io.BytesIO(encode_state(ENTRIES)))
    shorter = io.BytesIO()
    pq.write_table(file.read().slice(0, 3).replace_schema_metadata(file.metadata.metadata), shorter)
    with pytest.raises(CorruptObject, match="its checksum differs"):
        decode_state("key", shorter.getvalue())
