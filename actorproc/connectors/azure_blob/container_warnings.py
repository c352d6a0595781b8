"""Settings of a container and its account that cost money or refuse what is needed, for `actorproc doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from actorproc.connectors.shared.http_store import Reply

_REWRITES = "each host rewrites its heartbeat five times a minute"


def of_container(reply: Reply) -> Iterator[str]:
    """From its properties."""
    if (
        reply.headers.get("x-ms-has-immutability-policy") == "true"
        or reply.headers.get("x-ms-has-legal-hold") == "true"
    ):
        yield (
            f"the container has a policy of immutability or a legal hold: {_REWRITES}, and would be refused. Use a "
            "container without"
        )


def of_service(reply: Reply) -> Iterator[str]:
    """From the properties of the account's blob service."""
    try:
        root = ET.fromstring(reply.body)  # noqa: S314
    except ET.ParseError:
        return
    days = root.findtext("DeleteRetentionPolicy/Days")
    if root.findtext("DeleteRetentionPolicy/Enabled") == "true":
        yield (
            f"the account keeps what is deleted or overwritten for {days} days, and bills it: {_REWRITES}. Turn soft "
            "delete of blobs off, or use an account for actorproc alone"
        )


VERSIONED = (
    f"the account keeps all versions of blobs: {_REWRITES}, and deleted files stay. Add a lifecycle rule that deletes "
    "previous versions after some days, or use an account without versions"
)
