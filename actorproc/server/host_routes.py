"""`/livez`, `/readyz`, `/metrics`, `/state` and `/events` of one host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actorproc.host.statistics import Statistics
from actorproc.processor import Processor
from actorproc.runtime.clock import SYSTEM
from actorproc.server.access import Tokens
from actorproc.server.answers import event, event_stream, json_answer
from actorproc.server.health import Problem, problems, sink_problems
from actorproc.server.metrics import HostCollector

EVENTS_EVERY = 1.0
"""Seconds between two events of `/events`."""


class HostRoutes:
    """Answers for one processor on this host.

    Args:
        blocked: seconds for which the processor's event loop has not answered.
    """

    def __init__(self, processor: Processor, tokens: Tokens, blocked: Callable[[], float]) -> None:
        self._processor = processor
        self._tokens = tokens
        self._blocked = blocked
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        settings = processor.settings
        self._registry.register(
            HostCollector(
                self._look, source=processor.source, wall=processor.clock.wall,
                max_process_time=settings.max_process_time, per_partition=settings.http_partition_metrics,
            )
        )  # fmt: skip

    def routes(self) -> list[Route]:
        return [
            Route("/livez", self.livez),
            Route("/readyz", self.readyz),
            Route("/metrics", self.metrics),
            Route("/state", self.state),
            Route("/events", self.events),
        ]

    def _look(self) -> tuple[Statistics, float]:
        return self._processor.statistics(), self._silence()

    def _silence(self) -> float:
        """Seconds for which the event loop has not answered, once it is to be called blocked."""
        blocked = self._blocked()
        return blocked if blocked > self._processor.settings.loop_block_warning else 0.0

    def problems(self) -> list[Problem]:
        """Why this host is not ready."""
        host, blocked = self._look()
        limit = self._processor.settings.max_process_time
        return problems(host, now=self._processor.clock.wall(), max_process_time=limit, blocked=blocked)

    async def livez(self, request: Request) -> Response:
        """503 once the event loop was blocked for `max_process_time`: only a restart of the process helps then."""
        dead = self._blocked() > self._processor.settings.max_process_time
        return json_answer({"alive": not dead}, 503 if dead else 200)

    async def readyz(self, request: Request) -> Response:
        """503 with the reasons. They are left out for a caller without a token, where tokens are set.

        A sink that fails is shown, and the answer stays 200: it holds up no handler, and another host would not reach
        it either.
        """
        found = self.problems()
        answer: dict[str, object] = {"ready": not found}
        if not self._tokens.are_set or self._tokens.rights(request.headers):
            answer["problems"] = found
            if sinks := sink_problems(self._look()[0]):
                answer["sinks"] = sinks
        return json_answer(answer, 503 if found else 200)

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format, or OpenMetrics for those that accept it."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"Content-Type": content_type})

    async def state(self, request: Request) -> Response:
        return json_answer(self._processor.statistics())

    async def events(self, request: Request) -> Response:
        return event_stream(self._states())

    async def _states(self) -> AsyncIterator[bytes]:
        before = None
        while True:
            now = self._processor.statistics()
            if now != before:
                yield event("state", now)
            before = now
            await SYSTEM.sleep(EVENTS_EVERY)
