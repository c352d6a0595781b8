"""Parses a page of a listing."""

from __future__ import annotations

from calendar import timegm
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from actorproc.storage.backend import Entry

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Page(NamedTuple):
    entries: list[Entry]
    """With whole keys."""
    following: str | None
    """The marker of the next page."""


def parse_page(body: bytes) -> Page:
    """Directories are left out: an account with a hierarchical namespace lists them as if they were blobs.

    Raises:
        ParseError, ValueError, KeyError: it is something else than a listing of blobs.
    """
    root = ET.fromstring(body)  # noqa: S314 (expat of today refuses to blow up entities; the service is trusted)
    if root.tag != "EnumerationResults":
        raise ValueError(f"it begins with <{root.tag}>")
    entries = [entry for blob in root.iter("Blob") if (entry := _entry(blob)) is not None]
    return Page(entries, root.findtext("NextMarker") or None)


def _entry(blob: ET.Element) -> Entry | None:
    name, properties = blob.find("Name"), blob.find("Properties")
    if name is None or name.text is None or properties is None:
        raise ValueError("a blob has no name or no properties")
    told = {each.tag: each.text or "" for each in properties}
    if told.get("ResourceType") == "directory":
        return None
    return Entry(
        key=unquote(name.text) if name.get("Encoded") == "true" else name.text,
        tag=told["Etag"].strip('"'),
        size=int(told["Content-Length"]),
        modified=_seconds(told["Last-Modified"]),
    )


def _seconds(date: str) -> float:
    """Since 1970, of `Sat, 28 Nov 2026 12:00:00 GMT`. (The parser of the standard library takes ten times as long.)"""
    _, day, month, year, clock, zone = date.split(" ")
    if zone != "GMT":
        raise ValueError(f"the time {date!r} is not in GMT")
    hour, minute, second = clock.split(":")
    return float(timegm((int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second))))
