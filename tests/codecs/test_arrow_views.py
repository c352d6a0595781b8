"""Views of text that nulls hide: Arrow's validation passes over them, and its casts end the process if they are bad."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from actorproc.codecs.arrow import ArrowDecoder
from actorproc.codecs.arrow_stream import repeated_bytes
from actorproc.codecs.arrow_views import check_views
from actorproc.codecs.limits import Limits
from actorproc.errors import DecodeError
from actorproc.handler.decoder import values_of
from tests.formats.samples import FIRST, arrow_stream, arrow_value, handlers, process
from tests.partition.running import letters

TEXTS = b"0123456789" * 5
KINDS = [pa.string_view(), pa.binary_view()]
BAD = {
    "a length of -16777216": (-(2**24), 0, 0),
    "a length of -1": (-1, 0, 0),
    "a length of -2147483648": (-(2**31), 0, 0),
    "outside of its buffer": (13, 0, 38),
    "points outside": (20, 0, -20),
    "a buffer that the column does not have": (13, 1, 0),
    "points to a buffer": (13, -1, 0),
    "its buffer": (2**31 - 1, 0, 2**31 - 1),
}


def column(kind: pa.DataType, view: tuple[int, int, int], texts: bytes | None = TEXTS) -> pa.Array:
    """The text abc, and a null with this length, buffer and offset."""
    length, buffer, offset = view
    views = struct.pack("<i12s", 3, b"abc") + struct.pack("<i4sii", length, b"0123", buffer, offset)
    buffers = [pa.py_buffer(b"\x01"), pa.py_buffer(views), *([pa.py_buffer(texts)] if texts is not None else [])]
    return pa.Array.from_buffers(kind, 2, buffers)


def containers(inner: pa.Array) -> dict[str, pa.Array]:
    """Columns that contain the array."""
    zeros, numbers = pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32())
    bounds, ones = pa.array([0, 1, 2], pa.int32()), pa.array([1, 1], pa.int32())
    return {
        "itself": inner,
        "struct": pa.StructArray.from_arrays([inner], ["x"]),
        "list": pa.ListArray.from_arrays(bounds, inner),
        "large list": pa.LargeListArray.from_arrays(bounds.cast(pa.int64()), inner),
        "fixed-size list": pa.FixedSizeListArray.from_arrays(inner, 1),
        "list view": pa.ListViewArray.from_arrays(numbers, ones, inner),
        "map": pa.MapArray.from_arrays(bounds, pa.array(["a", "b"]), inner),
        "dictionary": pa.DictionaryArray.from_arrays(zeros, inner),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), inner),
        "dense union": pa.UnionArray.from_dense(zeros, numbers, [inner]),
        "sparse union": pa.UnionArray.from_sparse(zeros, [inner]),
        "struct in a list": pa.ListArray.from_arrays(bounds, pa.StructArray.from_arrays([inner], ["x"])),
        "extension": pa.ExtensionArray.from_storage(pa.opaque(inner.type, "a", "b"), inner),
    }


def refused(array: pa.Array, match: str) -> None:
    with pytest.raises(DecodeError, match=match):
        values_of(ArrowDecoder(), Any).parse(arrow_stream(pa.table({"v": array})))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("why", BAD)
def test_a_bad_view_under_a_null_is_refused(kind: pa.DataType, why: str) -> None:
    refused(column(kind, BAD[why]), why)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", containers(pa.array(["a", "b"])))
def test_a_bad_view_is_refused_in_each_container(kind: pa.DataType, name: str) -> None:
    for texts in (TEXTS, None):
        refused(containers(column(kind, (-(2**24), 0, 0), texts))[name], "a length of -16777216")
        refused(containers(column(kind, (20, 3, 0), texts))[name], "does not have")


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", containers(pa.array(["a", "b"])))
def test_good_views_under_nulls_are_read(kind: pa.DataType, name: str) -> None:
    for view in ((0, 0, 0), (12, 99, -99), (20, 0, 30), (50, 0, 0)):
        array = containers(column(kind, view))[name]
        assert values_of(ArrowDecoder(), Any).parse(arrow_stream(pa.table({"v": array})))
        check_views(array[1:])
    check_views(containers(pa.array(["x" * 50, None], kind))[name])


@pytest.mark.parametrize("way", ["columns", "one by one"])
async def test_a_bad_view_is_a_dead_letter_alone(way: str) -> None:
    bad = arrow_stream(pa.table({"name": column(pa.string_view(), (-(2**24), 0, 0)), "n": [1, 2]}))
    outcome = await process(handlers()[way], ArrowDecoder(), [arrow_value(1), bad, arrow_value(2)])
    [(sequence, letter)] = letters(outcome).items()
    assert (sequence, letter["error"]["type"]) == (FIRST + 1, "DecodeError")
    assert sum(table.num_rows for table in outcome.tables) == 2


def test_views_of_nulls_hide_no_bytes() -> None:
    """The length under the null would take 2 GiB from the sum of 200 long texts."""
    long = struct.pack("<i4sii", 2**20, b"xxxx", 0, 0)
    views = long * 200 + struct.pack("<iiii", -(2**31), 0, 0, 0)
    buffers = [b"\xff" * 25 + b"\x00", views, b"x" * 2**20]
    bomb = pa.Array.from_buffers(pa.string_view(), 201, list(map(pa.py_buffer, buffers)))
    refused(bomb, "a length of -2147483648")
    assert repeated_bytes(bomb[:200]) == 200 * 2**20
    with pytest.raises(ValueError, match="max_value_bytes"):
        values_of(ArrowDecoder(Limits(bytes=2**24)), Any).parse(arrow_stream(pa.table({"v": bomb[:200]})))
