"""`POST /api/processors/NAME/...`: pauses, drains and placements."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actorproc.admin.placement import Placement, describe
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.group.membership import GroupDocument
from actorproc.server.answers import Reason, Text, json_answer, parse_body, sender, with_json_errors
from actorproc.server.processors import named_processor


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The partitions or the host that the act changes."""

    partitions: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)] | None = None
    partition: Text | None = None
    host: Text | None = None
    all: bool = False
    reason: Reason = ""


class ActRoutes:
    """Acts on the processors of a container. `Guard` asks for the write token."""

    def __init__(self, container: str, settings: Settings) -> None:
        self._container = container
        self._settings = settings

    def routes(self) -> list[Route]:
        acts = ("pause", "resume", "drain", "move", "release")
        path = "/api/processors/{name}/"
        return [Route(path + act, with_json_errors(self._endpoint(act)), methods=["POST"]) for act in acts]

    def _endpoint(self, act: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            body = parse_body(await request.body(), _Body, "a JSON object")
            async with named_processor(request, self._container, self._settings) as (store, layout):
                placement = Placement(store, layout, self._settings, sender(request), reason=body.reason)
                group = await _act(act, body, placement)
            return json_answer({"now": describe(group.wishes)})

        return answer


def _act(act: str, body: _Body, group: Placement) -> Awaitable[GroupDocument]:
    """Raises UsageError: the body has other fields than the act needs."""
    match act, body:
        case "pause" | "resume", _Body(partitions=partitions, partition=None, host=None, all=everything) if (
            everything == (partitions is None)
        ):
            return (group.pause if act == "pause" else group.resume)(partitions or ())
        case "drain", _Body(partitions=None, partition=None, host=str(host), all=False):
            return group.drain(host)
        case "move", _Body(partitions=None, partition=str(partition), host=str(host), all=False):
            return group.move(partition, host)
        case "release", _Body(partitions=None, partition=str(partition), host=None, all=False):
            return group.release(partition)
        case "release", _Body(partitions=None, partition=None, host=str(host), all=False):
            return group.release_host(host)
    raise UsageError(
        'POST {"partitions": [...]} or {"all": true} to pause and resume; {"host": ...} to drain; {"partition": ..., '
        '"host": ...} to move; {"partition": ...} or {"host": ...} to release; each with a "reason" if you like'
    )
