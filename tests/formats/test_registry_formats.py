"""A registry that answers 500 to `format=serialized`, as Karapace does for schemas with references."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from actorproc.errors import SourceError
from actorproc.formats.registry.client import SchemaRegistry

REFERENCE = {"name": "lib/place.proto", "subject": "place", "version": 1}
SCHEMAS = {
    "/schemas/ids/1": {"schema": "flight", "schemaType": "PROTOBUF", "references": [REFERENCE]},
    "/subjects/flight/versions/latest": {
        "subject": "flight", "version": 1, "id": 1, "schema": "flight", "schemaType": "PROTOBUF",
        "references": [REFERENCE],
    },
    "/subjects/place/versions/1": {
        "subject": "place", "version": 1, "id": 2, "schema": "place", "schemaType": "PROTOBUF",
    },
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    is_down = False

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        fails = self.is_down or "format=serialized" in self.path
        found: Any = {"error_code": 500, "message": "Internal server error"} if fails else SCHEMAS.get(path)
        answer = json.dumps(found or {"error_code": 40403, "message": "no such schema"}).encode()
        self.send_response(500 if fails else 200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Handler.is_down = False
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def registry(url: str) -> SchemaRegistry:
    return SchemaRegistry(url, {"max.retries": 0})


async def test_a_registry_that_cannot_serialize_is_asked_for_text(url: str) -> None:
    schemas = registry(url)
    found = await schemas.schema(1)
    assert found is not None
    assert (found.text, found.references) == ("flight", {"lib/place.proto": "place"})
    latest = await schemas.version("flight")
    assert latest is not None
    assert latest.references == {"lib/place.proto": "place"}
    await schemas.close()


async def test_a_registry_that_is_down_is_an_outage(url: str) -> None:
    Handler.is_down = True
    schemas = registry(url)
    with pytest.raises(SourceError, match="Internal server error"):
        await schemas.schema(1)
    await schemas.close()
