"""The example that calls a service: an outage loses no record, and unknown keys become dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from actorproc.testing import run_handler
from examples.calls_a_service import Service, Shipped


def with_service(answer: httpx.MockTransport) -> type[Shipped]:
    """The handler, with `answer` in place of the service."""

    class Tested(Shipped):
        @classmethod
        @asynccontextmanager
        async def shared(cls, options: Service) -> AsyncIterator[httpx.AsyncClient]:
            async with httpx.AsyncClient(base_url=options.url, transport=answer) as client:
                yield client

    return Tested


@pytest.mark.parametrize("trouble", [503, 429, httpx.ConnectError("refused"), httpx.ReadTimeout("too slow")])
async def test_an_outage_loses_no_record_and_unknown_keys_are_dead_letters(trouble: int | Exception) -> None:
    asked = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if 20 < asked < 300:  # many times max_attempts
            if isinstance(trouble, Exception):
                raise trouble
            return httpx.Response(trouble)
        customer = request.url.path.removeprefix("/customers/")
        return httpx.Response(404) if customer == "c7" else httpx.Response(200, json={"city": f"city of {customer}"})

    orders = [b'{"order": "o%d", "customer": "c%d"}' % (n, n % 10) for n in range(50)]
    with anyio.fail_after(60):
        result = await run_handler(
            with_service(httpx.MockTransport(answer)), orders, options={"url": "http://customers"}
        )
    assert sorted(row["order"] for row in result.rows) == sorted(f"o{n}" for n in range(50) if n % 10 != 7)
    assert all(row["city"] == f"city of c{int(row['order'][1:]) % 10}" for row in result.rows)
    assert {letter["sequence"] for letter in result.dead_letters} == {7, 17, 27, 37, 47}
    assert {letter["error"]["type"] for letter in result.dead_letters} == {"LookupError"}
