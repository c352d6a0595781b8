"""`POST /api/processors/NAME/reset` and `.../undo`: resets of partitions, and their dry runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actorproc.admin.own_source import own_source
from actorproc.admin.resets import Resets, parse_reset_target, summary, was_done
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.server.answers import Reason, Text, json_answer, parse_body, sender, with_json_errors
from actorproc.server.processors import named_processor


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a POST. Without `yes` nothing is changed."""

    to: Text | None = None
    partitions: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)] | None = None
    all: bool = False
    yes: bool = False
    reason: Reason = ""
    id: Annotated[str, msgspec.Meta(max_length=100)] = ""

    @classmethod
    def of(cls, body: bytes, what: str) -> _Body:
        """Raises UsageError: it is not JSON, has an unknown or empty field, or lacks a field."""
        fields = '{"to": ..., ' if what == "reset" else "{"
        wanted = f'{fields}"partitions": [...] or "all": true, "yes": true to do it, "reason": ..., "id": ...}}'
        given = parse_body(body, cls, wanted)
        if given.all == (given.partitions is not None) or (given.to is None) == (what == "reset"):
            raise UsageError(f"POST {wanted}")
        return given


class ResetRoutes:
    """Resets the processors of a container. `Guard` asks for the write token."""

    def __init__(self, container: str, settings: Settings) -> None:
        self._container = container
        self._settings = settings

    def routes(self) -> list[Route]:
        path = "/api/processors/{name}/"
        return [
            Route(path + what, with_json_errors(self._endpoint(what)), methods=["POST"]) for what in ("reset", "undo")
        ]

    def _endpoint(self, what: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            body = _Body.of(await request.body(), what)
            goal = None if body.to is None else parse_reset_target(body.to)
            settings, partitions = self._settings, body.partitions or ()
            async with (
                named_processor(request, self._container, settings) as (store, layout),
                own_source(store, layout, settings) as source,
            ):
                resets = Resets(store, layout, settings, source, sender(request), body.reason, command=body.id)
                found = await (resets.plan_undo(partitions) if goal is None else resets.plan(goal, partitions))
                if body.yes:
                    refused = [one for one in found if one.refusal]
                    found = [*refused, *await resets.carry_out(found, {"to": body.to or "undo"})]
            documents = [one.document() for one in found]
            return json_answer(
                {"done": body.yes and was_done(found), "effect": summary(found), "partitions": documents}
            )

        return answer
