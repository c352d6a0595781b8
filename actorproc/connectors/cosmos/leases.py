"""Leases of Azure's change feed processors, kept as documents: where a processor that comes from them begins.

The layout is that of the SDKs for .NET (v3) and Java (v4): a document for each range, with `LeaseToken`,
`ContinuationToken` and mostly `FeedRange`, whose id begins with the processor's name and contains the monitored
container's resource id.
https://github.com/Azure/azure-cosmos-dotnet-v3/tree/master/Microsoft.Azure.Cosmos/src/ChangeFeedProcessor/LeaseManagement
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from actorproc.connectors.cosmos.address import FORM, ContainerAddress
from actorproc.connectors.cosmos.feed import PhysicalRange
from actorproc.connectors.cosmos.position import Span, lsn_of, places_in
from actorproc.connectors.shared.entra_login import EntraLogin
from actorproc.errors import SourceError, UsageError

LEASES = "cosmos-leases:"
"""Begins the URL of the container in which change feed processors keep their leases."""

LEASES_FORM = f"{LEASES}{FORM}[?processor=NAME]"


async def read_leases(
    consumer: str, given: Mapping[str, Any], entra: EntraLogin, monitored: str, ranges: Mapping[str, PhysicalRange]
) -> Sequence[Span]:
    """How far a processor has come in the container with the resource id `monitored`.

    Args:
        consumer: of the form `LEASES_FORM`.
        given: the source's options, whose login must be good for the leases, too; so must `entra` without a key.
        ranges: of the monitored container, for leases that name only the id of a range.

    Raises:
        UsageError: the URL is not of its form, or several processors keep their leases there.
        SourceError: a lease is not understood.
    """
    url, _, query = consumer.removeprefix(LEASES).partition("?")
    asked = parse_qs(query, keep_blank_values=True)
    if not asked.keys() <= {"processor"}:
        raise UsageError(f"start_from = {consumer!r}: write {LEASES_FORM}")
    address = ContainerAddress.of(url, given)
    name = asked.get("processor", [""])[0]
    async with address.client(entra) as client:
        leases = client.get_database_client(address.database).get_container_client(address.container)
        found = [lease async for lease in leases.read_all_items() if monitored in lease["id"]]
    chosen = [lease for lease in found if lease["id"].startswith(name) and "LeaseToken" in lease]
    processors = {lease["id"].partition(monitored)[0] for lease in chosen}
    if len(processors) > 1:
        raise UsageError(
            f"start_from = {consumer!r}: several processors keep leases there, such as those whose ids begin with "
            f"{', '.join(sorted(processors)[:5])}: choose one with ?processor=NAME"
        )
    spans = [span for lease in chosen if lease.get("ContinuationToken") for span in _spans(lease, ranges)]
    return sorted(spans, key=lambda span: span.lsn)  # of a split that was cut short: the children's are further


def _spans(lease: Mapping[str, Any], ranges: Mapping[str, PhysicalRange]) -> list[Span]:
    """How far the range of a lease is processed. .NET keeps an ETag, Java the client's whole state in base 64."""
    token = lease["ContinuationToken"]
    try:
        if token.strip('"').isdigit():
            low, high = _bounds(lease, ranges)
            return [Span(low, high, lsn_of(token))]
        return [
            Span(part["min"], part["max"], lsn_of(etag))
            for etag, part in places_in(json.loads(base64.b64decode(token)))
        ]
    except (ValueError, KeyError, TypeError):
        raise SourceError(f"lease {lease['id']}: its ContinuationToken or FeedRange is not understood") from None


def _bounds(lease: Mapping[str, Any], ranges: Mapping[str, PhysicalRange]) -> tuple[str, str]:
    if (feed_range := lease.get("FeedRange")) is not None:
        return feed_range["Range"]["min"], feed_range["Range"]["max"]
    place = ranges[lease["LeaseToken"]]
    return place.low, place.high
