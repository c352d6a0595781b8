"""`/api/processors/NAME/dead-letters`: dead letters are listed, replayed and purged."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any, Literal

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actorproc.admin.dead_letters import DeadLetters, LetterId, Replayed, Selection
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.server.answers import Text, json_answer, limit_of, parse_body, sender, with_json_errors
from actorproc.server.processors import named_processor

MOST_LETTERS = 200
"""Dead letters in one answer."""

COUNTING = 2.0
"""Seconds for which the letters beyond those in the answer are counted."""

_REPLAYED = {"yes": True, "no": False}

_CHOICES = (
    '{"ids": ["PARTITION:SEQUENCE", ...]}, or one or more of "partition", "kind" and "replayed" ("yes" or "no"), '
    'or {"all": true}'
)


class LetterRoutes:
    """Dead letters of the processors of a container. `Guard` asks for the write token before an act."""

    def __init__(self, container: str, settings: Settings) -> None:
        self._container = container
        self._settings = settings
        self._replays: dict[str, tuple[int, ...]] = {}  # by processor: files that are done, and all

    def routes(self) -> list[Route]:
        path = "/api/processors/{name}/dead-letters"
        return [
            Route(path, with_json_errors(self.letters)),
            Route(path + "/replay", with_json_errors(self.replaying), methods=["GET"]),
            Route(path + "/{action}", with_json_errors(self.act), methods=["POST"]),
        ]

    async def letters(self, request: Request) -> Response:
        """Dead letters that match `partition`, `kind` and `replayed`, at most `limit`, and how many there are."""
        query = request.query_params
        limit = limit_of(request, MOST_LETTERS)
        async with self._opened(request) as letters:
            found: list[Any] = []
            total, stop_at = 0, SYSTEM.monotonic() + COUNTING
            async with aclosing(letters.select(_selection(query))) as selected:
                async for letter in selected:
                    total += 1
                    if total <= limit:
                        found.append(letter)
                    elif SYSTEM.monotonic() >= stop_at:
                        break
                else:
                    stop_at = math.inf
        return json_answer(
            {"letters": found, "more": total > limit, "total": total, "total_exact": stop_at == math.inf,
             "kinds": dict(letters.kinds)}
        )  # fmt: skip

    async def replaying(self, request: Request) -> Response:
        """How far the replay is that this server carries out; both numbers are 0 if there is none."""
        done, files = self._replays.get(request.path_params["name"], (0, 0))
        return json_answer({"done": done, "files": files})

    async def act(self, request: Request) -> Response:
        """Replay or purge the letters that a `_Choice` names."""
        action = request.path_params["action"]
        if action not in ("replay", "purge"):
            raise UsageError(f"no action {action!r:.100}: POST to .../replay or .../purge")
        selection, value = _Choice.of(await request.body(), action)
        async with self._opened(request) as letters:
            if action == "replay":
                done = await self._replay(letters, selection, value)
                return json_answer(
                    {"replayed": done.appended, "before": done.before, "log": done.log, "refused": done.refused}
                )
            planned = await letters.plan_purge(selection)
            purged = await letters.purge(planned)
            return json_answer({"purged": purged, "kept": planned.letters - purged, "held": planned.held})

    async def _replay(self, letters: DeadLetters, selection: Selection, value: bytes | None) -> Replayed:
        name = letters.processor

        def note(*progress: int) -> None:
            self._replays[name] = progress

        try:
            return await letters.replay(selection, self._settings, value=value, progress=note)
        finally:
            self._replays.pop(name, None)

    @asynccontextmanager
    async def _opened(self, request: Request) -> AsyncIterator[DeadLetters]:
        async with named_processor(request, self._container, self._settings) as (store, layout):
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
