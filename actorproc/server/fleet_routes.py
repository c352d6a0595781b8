"""`GET /api/processors...`: the processors of a container, their hosts and partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actorproc.admin.audit import read_audit
from actorproc.admin.cost import Load, cost_document, requests
from actorproc.admin.dead_letters import LetterId
from actorproc.admin.explain import explain
from actorproc.admin.scaling import CATCH_UP
from actorproc.admin.trace import trace
from actorproc.errors import ActorprocError, UsageError
from actorproc.output.source_identity import read_source
from actorproc.server.answers import event, event_stream, json_answer, limit_of, with_json_errors
from actorproc.server.feeds import Feed, Feeds
from actorproc.sources.log import LogSource
from actorproc.storage.locations import find_processors, missing_processor
from actorproc.storage.names import STATE, ProcessorLayout
from actorproc.stores import open_store

MOST_ACTS = 500
"""Acts of operators in one answer."""


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
        """The same as events: the changes after version `since`, by default everything; at most once a second.

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
        """The useful number of hosts, and the cost of the present load in a month, by the settings of this server."""
        feed, settings = await self._feed(request), self._feeds.settings
        scale, views = await feed.scale(CATCH_UP), (await feed.view()).partitions
        layout = ProcessorLayout(request.path_params["name"])
        async with open_store(self._feeds.container, settings) as store:
            source = await read_source(store, layout)
            state = await store.list(layout.root + STATE.folder, limit=1)
        is_log = source is not None and source.kind == LogSource.__name__
        records = 0.0 if scale.per_second is None else scale.per_second
        load = Load(
            hosts=max(1, scale.running),
            partitions=sum(view.is_open for view in views),
            records=records,
            log=is_log,
            state=bool(state.entries),
        )
        return json_answer({"scale": scale, "load": load, **cost_document(requests(load, settings))})

    async def history(self, request: Request) -> Response:
        """The last day of the processor, or of `partition`."""
        return json_answer(await (await self._feed(request)).day(request.query_params.get("partition")))

    async def audit(self, request: Request) -> Response:
        """The latest acts of operators, at most `limit`, the latest first."""
        limit = limit_of(request, MOST_ACTS)
        layout = ProcessorLayout(request.path_params["name"])
        async with open_store(self._feeds.container, self._feeds.settings) as store:
            acts = await read_audit(store, layout.audit, limit)
        return json_answer({"acts": acts[::-1]})

    async def record(self, request: Request) -> Response:
        """The outcome of the record `id`, written PARTITION:SEQUENCE."""
        wanted = LetterId.parse(request.query_params.get("id", ""))
        layout = ProcessorLayout(request.path_params["name"])
        async with open_store(self._feeds.container, self._feeds.settings) as store:
            return json_answer(await trace(store, layout, self._feeds.settings, *wanted))

    async def _feed(self, request: Request) -> Feed:
        """Raises UsageError: there is no such processor."""
        name = ProcessorLayout(request.path_params["name"]).processor
        if name not in self._known:
            async with open_store(self._feeds.container, self._feeds.settings) as store:
                if (missing := await missing_processor(store, name)) is not None:
                    raise UsageError(missing)
            self._known.add(name)
        return self._feeds.of(name)
