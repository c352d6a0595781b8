"""The broker, the queues and the login that an AMQP URL and its source options name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from actorproc.config.validation import unknown_option
from actorproc.errors import UsageError

FORM = "amqps://USER@HOST[:PORT]/QUEUE[,QUEUE...], where a QUEUE such as orders.{0..7} stands for eight"
PASSWORD = "AMQP_PASSWORD"  # noqa: S105  # the name of the variable

_PORTS = {"amqp": 5672, "amqps": 5671}
_NUMBERED = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_QUEUES = 10_000
_OPTIONS = (
    "password",
    "address",
    "identity",
    "idle_timeout",
    "ca_file",
    "certificate_file",
    "key_file",
    "virtual_host",
)


@dataclass(frozen=True, slots=True)
class AmqpAddress:
    """Where the queues are, and how to log in."""

    host: str
    port: int
    tls: bool
    queues: tuple[str, ...]
    user: str | None
    password: str | None = field(repr=False)
    template: str = "{}"
    """The address of a queue's link at the broker, with `{}` for its name."""
    identity: str = "message-id"
    idle_timeout: float = 30.0
    """Seconds without any frame after which the broker counts as gone."""
    virtual_host: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(url: str, options: Mapping[str, Any]) -> AmqpAddress:
    """The address of an `amqp://` or `amqps://` URL.

    Raises:
        UsageError: the URL is not of its form, contains a password, or an option is unknown or wrong.
    """
    place = urlsplit(url)
    if place.password is not None:
        raise UsageError(
            f"source {place.scheme}://...@{place.hostname}: no password in a URL; set {PASSWORD} in the environment, "
            "or the source option password (`@PATH` reads a file)"
        )
    if not place.hostname or not place.path.strip("/,") or place.query or place.fragment:
        raise UsageError(f"source {url!r}: write {FORM}")
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise UsageError(unknown_option("source", url, unknown[0], _OPTIONS))
    try:
        port = place.port or _PORTS[place.scheme]
        idle_timeout = float(options.get("idle_timeout", 30))
    except ValueError as error:
        raise UsageError(f"source {url!r}: {error}") from None
    template = str(options.get("address", "{}"))
    if "{}" not in template or idle_timeout <= 0:
        raise UsageError("source option address needs {} for the queue's name, and idle_timeout seconds above 0")
    return AmqpAddress(
        host=place.hostname, port=port, tls=place.scheme == "amqps", queues=_queues(url, place.path[1:]),
        user=None if place.username is None else unquote(place.username),
        password=str(options["password"]) if "password" in options else os.environ.get(PASSWORD),
        template=template, identity=_identity(str(options.get("identity", "message-id"))), idle_timeout=idle_timeout,
        **{name: str(options[name]) for name in _OPTIONS[4:] if name in options},
    )  # fmt: skip


def _queues(url: str, path: str) -> tuple[str, ...]:
    names = dict.fromkeys(name for part in path.split(",") if part for name in _expand(url, unquote(part)))
    if len(names) > _MOST_QUEUES:
        raise UsageError(f"source {url!r} names {len(names)} queues, and {_MOST_QUEUES} are allowed")
    return tuple(names)


def _expand(url: str, part: str) -> list[str]:
    found = _NUMBERED.search(part)
    if found is None:
        return [part]
    first, last = int(found[1]), int(found[2])
    if not first <= last < first + _MOST_QUEUES:
        raise UsageError(f"source {url!r}: {found[0]} must count up, to at most {_MOST_QUEUES} queues")
    width = len(found[1]) if found[1].startswith("0") else 0
    return [f"{part[: found.start()]}{number:0{width}}{part[found.end() :]}" for number in range(first, last + 1)]


def _identity(text: str) -> str:
    kind, _, name = text.partition(":")
    if text in ("message-id", "body") or (kind in ("annotation", "property") and name):
        return text
    raise UsageError(
        f"source option identity = {text!r}: allowed are message-id, annotation:NAME, property:NAME, and body, which "
        "declares that two messages with equal bodies are one"
    )
