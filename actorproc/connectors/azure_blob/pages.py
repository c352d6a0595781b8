"""Parses a page of a listing."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from actorproc.storage.backend import Entry


class Page(NamedTuple):
    entries: list[Entry]
    """With whole keys."""
    following: str | None
    """The marker of the next page."""


def parse_page(body: bytes) -> Page:
    """Directories are left out: an account with a hierarchical namespace lists them as if they were blobs.

    Raises:
        ParseError, ValueError, TypeError: it is something else than a listing of blobs.
    """
    root = ET.fromstring(body)  # noqa: S314 (expat of today refuses to blow up entities; the service is trusted)
    if root.tag != "EnumerationResults":
        raise ValueError(f"it begins with <{root.tag}>")
    entries = [_entry(blob) for blob in root.iter("Blob") if blob.findtext("Properties/ResourceType") != "directory"]
    return Page(entries, root.findtext("NextMarker") or None)


def _entry(blob: ET.Element) -> Entry:
    name = blob.find("Name")
    if name is None or name.text is None:
        raise ValueError("a blob has no name")
    return Entry(
        key=unquote(name.text) if name.get("Encoded") == "true" else name.text,
        tag=blob.findtext("Properties/Etag", "").strip('"'),
        size=int(blob.findtext("Properties/Content-Length", "")),
        modified=parsedate_to_datetime(blob.findtext("Properties/Last-Modified", "")).timestamp(),
    )
