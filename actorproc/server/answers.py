"""JSON bodies and answers, errors as JSON, and server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from actorproc.errors import ActorprocError, StoreError, UsageError

Endpoint = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")

Text = Annotated[str, msgspec.Meta(min_length=1)]
"""A field of a body that may not be empty."""

Reason = Annotated[str, msgspec.Meta(max_length=500)]
"""Why an operator acts, for the audit."""


def limit_of(request: Request, most: int) -> int:
    """`limit` of the query, at most `most`, which is the default. Raises UsageError: it is below 1."""
    limit = min(int(request.query_params.get("limit", most)), most)
    if limit < 1:
        raise UsageError(f"limit = {limit}: 1 to {most}")
    return limit


def parse_body(body: bytes, kind: type[T], wanted: str) -> T:
    """The JSON of a POST. Raises UsageError with the `wanted` form: it is not JSON, or has a wrong field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{error}: POST {wanted}") from None


def sender(request: Request) -> str:
    """Who asks, for the audit."""
    return f"http from {request.client.host if request.client else 'unknown'}"


def json_answer(content: Any, status: int = 200) -> Response:
    """Any dataclass, struct, list or dictionary as JSON. Never cached."""
    return Response(msgspec.json.encode(content), status, {"Cache-Control": "no-store"}, "application/json")


def event(name: str, content: Any) -> bytes:
    """One server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"


def event_stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    """`events` as they come. Proxies are asked not to buffer them."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def with_json_errors(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with errors as JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (UsageError, ValueError) as error:
            return json_answer({"error": str(error)}, 400)
        except StoreError as error:
            return json_answer({"error": str(error)}, 503)
        except ActorprocError as error:
            return json_answer({"error": str(error)}, 500)

    return answer
