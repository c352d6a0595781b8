"""`/api/...`: the processors of a container, their hosts and partitions, and their dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actorproc.admin.audit import read_audit
from actorproc.admin.cost import Load, cost_document, requests
from actorproc.admin.dead_letters import DeadLetters, LetterId, Selection
from actorproc.admin.explain import explain
from actorproc.admin.scaling import CATCH_UP
from actorproc.admin.trace import trace
from actorproc.errors import ActorprocError, UsageError
from actorproc.output.source_identity import read_source
from actorproc.server.answers import Text, event, event_stream, json_answer, parse_body, sender, with_json_errors
from actorproc.server.feeds import Feed, Feeds
from actorproc.sources.log import LogSource
from actorproc.storage.locations import find_processors, missing_processor
from actorproc.storage.names import STATE, ProcessorLayout
from actorproc.stores import open_store

MOST_LETTERS = 200
"""Dead letters in one answer."""

MOST_ACTS = 500
"""Acts of operators in one answer."""

_REPLAYED = {"yes": True, "no": False}

_CHOICES = (
    '{"ids": ["PARTITION:SEQUENCE", ...]}, or one or more of "partition", "kind" and "replayed" ("yes" or "no"), '
    'or {"all": true}'
)


class FleetRoutes:
    """Answers for all processors of a container.

    Args:
        own: the processor of the host that answers, which is shown first; None: no host answers.
    """

    def __init__(self, feeds: Feeds, own: str | None) -> None:
        self._feeds = feeds
        self._own = own
        self._known: set[str] = {own} if own else set()

    def routes(self) -> list[Route]:
        return [
            Route("/api/processors", with_json_errors(self.processors)),
            Route("/api/processors/{name}", with_json_errors(self.fleet)),
            Route("/api/processors/{name}/events", with_json_errors(self.events)),
            Route("/api/processors/{name}/scale", with_json_errors(self.scale)),
            Route("/api/processors/{name}/cost", with_json_errors(self.cost)),
            Route("/api/processors/{name}/history", with_json_errors(self.history)),
            Route("/api/processors/{name}/partitions/{partition:path}", with_json_errors(self.partition)),
            Route("/api/processors/{name}/audit", with_json_errors(self.audit)),
            Route("/api/processors/{name}/record", with_json_errors(self.record)),
            Route("/api/processors/{name}/dead-letters", with_json_errors(self.letters)),
            Route("/api/processors/{name}/dead-letters/{action}", with_json_errors(self.act), methods=["POST"]),
        ]

    async def processors(self, request: Request) -> Response:
        """Names of the processors in the container."""
        async with open_store(self._feeds.container, self._feeds.settings) as store:
            names = await find_processors(store)
        return json_answer({"container": self._feeds.container, "own": self._own, "processors": names})

    async def fleet(self, request: Request) -> Response:
        """Hosts and partitions, once."""
        return json_answer(await (await self._feed(request)).view())

    async def events(self, request: Request) -> Response:
        """The same as events: what has changed after version `since`, by default everything; at most once a second.

        An event stream is not compressed, so the page gets the first view apart.
        """
        feed, since = await self._feed(request), int(request.query_params.get("since", 0))

        async def stream() -> AsyncIterator[bytes]:
            try:
                async for view in feed.views(since):
                    yield event("view", view)
            except ActorprocError as error:
                yield event("problem", str(error))

        return event_stream(stream())

    async def scale(self, request: Request) -> Response:
        """How many hosts are useful to be without lag in `catch_up` seconds. For autoscalers."""
        catch_up = float(request.query_params.get("catch_up", CATCH_UP))
        if not 1 <= catch_up <= 86_400:
            raise UsageError(f"catch_up = {catch_up:g}: 1 to 86,400 seconds")
        return json_answer(await (await self._feed(request)).scale(catch_up))

    async def partition(self, request: Request) -> Response:
        """One partition with its history and an explanation."""
        feed, name = await self._feed(request), request.path_params["partition"]
        fleet = await feed.view()
        found = next((view for view in fleet.partitions if view.partition == name), None)
        if found is None:
            raise UsageError(f"no partition {name!r}")
        return json_answer(
            {"partition": found, "history": feed.history(name), "explanation": explain(found, fleet.hosts, fleet.time)}
        )

    async def cost(self, request: Request) -> Response:
        """How many hosts are useful, and what the present load costs in a month, by the settings of this server."""
        feed, settings = await self._feed(request), self._feeds.settings
        scale, partitions = await feed.scale(CATCH_UP), len((await feed.view()).partitions)
        layout = ProcessorLayout(request.path_params["name"])
        async with open_store(self._feeds.container, settings) as store:
            source = await read_source(store, layout)
            state = await store.list(layout.root + STATE.folder, limit=1)
        is_log = source is not None and source.kind == LogSource.__name__
        records = 0.0 if scale.per_second is None else scale.per_second
        load = Load(
            hosts=max(1, scale.running), partitions=partitions, records=records, log=is_log, state=bool(state.entries)
        )
        return json_answer({"scale": scale, "load": load, **cost_document(requests(load, settings))})

    async def history(self, request: Request) -> Response:
        """The last day of the processor, or of `partition`."""
        return json_answer(await (await self._feed(request)).day(request.query_params.get("partition")))

    async def audit(self, request: Request) -> Response:
        """The latest acts of operators, at most `limit`, the latest first."""
        limit = min(int(request.query_params.get("limit", MOST_ACTS)), MOST_ACTS)
        if limit < 1:
            raise UsageError(f"limit = {limit}: 1 to {MOST_ACTS}")
        layout = ProcessorLayout(request.path_params["name"])
        async with open_store(self._feeds.container, self._feeds.settings) as store:
            acts = await read_audit(store, layout, limit)
        return json_answer({"acts": acts[::-1]})

    async def record(self, request: Request) -> Response:
        """What became of the record `id`, written PARTITION:SEQUENCE."""
        wanted = LetterId.parse(request.query_params.get("id", ""))
        layout = ProcessorLayout(request.path_params["name"])
        async with open_store(self._feeds.container, self._feeds.settings) as store:
            return json_answer(await trace(store, layout, self._feeds.settings, *wanted))

    async def letters(self, request: Request) -> Response:
        """Dead letters that match `partition`, `kind` and `replayed`; from `after` on, at most `limit`."""
        query = request.query_params
        limit = min(int(query.get("limit", MOST_LETTERS)), MOST_LETTERS)
        async with self._letters(request) as letters:
            found: list[Any] = []
            async for letter in letters.select(_selection(query)):
                found.append(letter)
                if len(found) > limit:
                    break
        return json_answer({"letters": found[:limit], "more": len(found) > limit, "kinds": dict(letters.kinds)})

    async def act(self, request: Request) -> Response:
        """Replay or purge the letters that a `_Choice` names."""
        action = request.path_params["action"]
        if action not in ("replay", "purge"):
            raise UsageError(f"no action {action!r:.100}: POST to .../replay or .../purge")
        selection, value = _Choice.of(await request.body(), action)
        async with self._letters(request) as letters:
            if action == "replay":
                done = await letters.replay(selection, self._feeds.settings, value=value)
                return json_answer({"replayed": done.appended, "before": done.before, "log": done.log})
            planned = await letters.plan_purge(selection)
            purged = await letters.purge(planned)
            return json_answer({"purged": purged, "kept": planned.letters - purged, "held": planned.held})

    async def _feed(self, request: Request) -> Feed:
        """Raises UsageError: there is no such processor."""
        name = ProcessorLayout(request.path_params["name"]).processor
        if name not in self._known:
            async with open_store(self._feeds.container, self._feeds.settings) as store:
                if (missing := await missing_processor(store, name)) is not None:
                    raise UsageError(missing)
            self._known.add(name)
        return self._feeds.of(name)

    @asynccontextmanager
    async def _letters(self, request: Request) -> AsyncIterator[DeadLetters]:
        layout = ProcessorLayout(request.path_params["name"])
        async with open_store(self._feeds.container, self._feeds.settings) as store:
            yield await DeadLetters.opened(store, layout, sender(request))


def _selection(query: QueryParams) -> Selection:
    replayed = _REPLAYED.get(query.get("replayed", ""))
    return Selection(partition=query.get("partition") or None, kind=query.get("kind") or None, replayed=replayed)


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a POST: which letters to act on. A purge cannot be undone, so no mistake may widen the choice."""

    ids: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] | None = None
    partition: Text | None = None
    kind: Text | None = None
    replayed: Literal["yes", "no"] | None = None
    all: bool = False
    value: str | None = None
    """Of a replay: the corrected value of the one letter in `ids`."""

    @classmethod
    def of(cls, body: bytes, action: str) -> tuple[Selection, bytes | None]:
        """The letters that the body names, and the corrected value.

        Raises:
            UsageError: it is not JSON, has an unknown or empty field, names nothing, or `all` and something else.
        """
        given = parse_body(body, cls, _CHOICES)
        if given.value is not None and (action == "purge" or len(given.ids or ()) != 1):
            raise UsageError("`value` is for a replay of one letter, which `ids` names")
        if given.all == (given != cls(all=given.all)):
            raise UsageError(f"{'`all` and a choice' if given.all else 'no choice'} of dead letters: POST {_CHOICES}")
        ids = frozenset(map(LetterId.parse, given.ids or ()))
        selection = Selection(ids, given.partition, given.kind, _REPLAYED.get(given.replayed or ""))
        return selection, None if given.value is None else given.value.encode()
