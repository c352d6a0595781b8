"""Reads pages of a change feed through Microsoft's client, one request each."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from azure.cosmos.aio import ContainerProxy

from actorproc.connectors.cosmos.errors import created_again
from actorproc.connectors.cosmos.position import MODES, Span, lsn_of, places_in
from actorproc.records import ReadCost


class Page(NamedTuple):
    """Documents of whole transactions, in order.

    Attributes:
        lsn: transaction up to which the page goes; without documents, the newest one.
        range: id of the physical range that has answered.
        container: resource id of the container that has answered.
        is_split: the span is part of several physical ranges, of now or of earlier ones that the client remembers.
    """

    documents: list[dict[str, Any]]
    lsn: int
    range: str
    container: str
    is_split: bool
    cost: ReadCost


class PhysicalRange(NamedTuple):
    """A physical range of a container: its hashed partition keys, and the ranges from which it came, oldest first."""

    id: str
    low: str
    high: str
    parents: tuple[str, ...]


class ChangeFeed:
    """The change feed of one container.

    Args:
        container: resource id, which a container that is created again does not share.
    """

    def __init__(self, proxy: ContainerProxy, container: str, mode: str, max_items: int) -> None:
        self.container = container
        self._proxy, self._mode, self._max_items = proxy, mode, max_items

    async def ranges(self) -> list[PhysicalRange]:
        """The physical ranges of now. The client's `read_feed_ranges` leaves out their ids and parents."""
        found: AsyncIterator[Mapping[str, Any]] = self._proxy.client_connection._ReadPartitionKeyRanges(
            self._proxy.container_link
        )
        return [
            PhysicalRange(one["id"], one["minInclusive"], one["maxExclusive"], tuple(one.get("parents") or ()))
            async for one in found
        ]

    async def page(self, span: Span) -> Page:
        """The next page of this span. Raises the client's errors."""
        if not span.lsn and self._mode == "latest":
            return await self._fetch(self._max_items, feed_range=span.feed_range, start_time="Beginning")
        return await self._fetch(self._max_items, continuation=span.token(self.container, self._mode))

    async def page_from(self, span: Span, time: datetime | Literal["Now"]) -> Page:
        """The first page from a time on, as short as possible."""
        return await self._fetch(1, feed_range=span.feed_range, start_time=time)

    async def _fetch(self, max_items: int, **place: Any) -> Page:
        answers = list[Mapping[str, Any]]()
        if "continuation" not in place:  # which has its own
            place["mode"] = MODES[self._mode]
        query: Any = self._proxy.query_items_change_feed  # whose overloads do not know arguments by name
        hook = lambda headers, _: answers.append(headers)  # noqa: E731
        pages = query(max_item_count=max_items, response_hook=hook, **place).by_page()
        try:
            documents = [document async for document in await anext(pages)]
        except StopAsyncIteration:
            documents = []
        except ValueError as error:  # the client has found another container of this name, and compares
            raise (created_again(self.container) if "rid" in str(error) else error) from error
        # The client replaces the ETag by its token once the hook has seen it, and has no other way to tell it without
        # documents. So the headers are read here, and not in the hook.
        state = json.loads(base64.b64decode(answers[-1]["etag"]))
        places = places_in(state)
        return Page(
            documents,
            lsn_of(places[0][0]),
            answers[-1]["x-ms-session-token"].partition(":")[0],
            state["containerRid"],
            len(places) > 1,
            _cost(answers),
        )


def _cost(answers: list[Mapping[str, Any]]) -> ReadCost:
    units = sum(float(headers.get("x-ms-request-charge", 0)) for headers in answers)
    tokens = {"session": answers[-1]["x-ms-session-token"]}
    return ReadCost(requests=len(answers), charges={"request_units": units}, tokens=tokens)
