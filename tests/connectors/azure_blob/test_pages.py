"""Pages of listings, as Azure and its emulator write them."""

from __future__ import annotations

from email.utils import formatdate
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorproc.connectors.azure_blob.pages import parse_page
from actorproc.storage.backend import Entry


def page(*blobs: str, marker: str = "") -> bytes:
    text = f'<EnumerationResults ServiceEndpoint="x"><Blobs>{"".join(blobs)}</Blobs><NextMarker>{marker}</NextMarker>'
    return f'\ufeff<?xml version="1.0" encoding="utf-8"?>{text}</EnumerationResults>'.encode()


def blob(name: str, date: str = "Sat, 28 Nov 2026 12:00:00 GMT", etag: str = "0x1", more: str = "") -> str:
    properties = f"<Last-Modified>{date}</Last-Modified><Etag>{etag}</Etag><Content-Length>7</Content-Length>{more}"
    return f"<Blob>{name}<Properties>{properties}</Properties></Blob>"


def test_blobs_are_read_and_directories_left_out() -> None:
    directory = blob("<Name>d</Name>", more="<ResourceType>directory</ResourceType>")
    file = blob("<Name>d/f</Name>", etag='"0x2"', more="<ResourceType>file</ResourceType>")
    encoded = blob('<Name Encoded="true">d%2Fx%01%25</Name>')
    entries, following = parse_page(page(directory, file, encoded, blob("<Name>100%25</Name>"), marker="m"))
    assert entries == [
        Entry("d/f", "0x2", 7, 1795867200.0),
        Entry("d/x\x01%", "0x1", 7, 1795867200.0),
        Entry("100%25", "0x1", 7, 1795867200.0),
    ]
    assert following == "m"
    assert parse_page(page()) == ([], None)


@given(st.integers(0, 4_000_000_000))
def test_any_time_is_read(seconds: int) -> None:
    ((entry,), _) = parse_page(page(blob("<Name>k</Name>", formatdate(seconds, usegmt=True))))
    assert entry.modified == seconds


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html/>", b"<Error/>", page()[:-5], page("<Blob/>"), page(blob("")), page(blob("<Name/>")),
        page(blob("<Name>k</Name>", "yesterday")), page(blob("<Name>k</Name>", "Sat, 28 Nov 2026 12:00:00 CET")),
        page("<Blob><Name>k</Name><Properties/></Blob>"),
    ],
)  # fmt: skip
def test_something_else_is_no_listing(body: bytes) -> None:
    with pytest.raises((ET.ParseError, ValueError, KeyError)):
        parse_page(body)
