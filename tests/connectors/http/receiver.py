"""A real HTTP server in a thread that keeps requests by their key, as a careful receiver does, and loses answers."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    """As it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        if "ndjson" in self.headers["content-type"]:
            return [json.loads(line) for line in self.body.splitlines()]
        found = json.loads(self.body)
        return found if isinstance(found, list) else [found]


@dataclass(frozen=True)
class Answer:
    """What the receiver does after it has taken a request, or instead."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    takes: bool = True
    """Whether the request counts."""
    is_lost: bool = False
    """The connection is closed instead of an answer."""


class Receiver:
    """Keeps the first request of each key. It can be stopped and started again at the same port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]
        self.kept: dict[str, Request] = {}
        self.arrived: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda request: Answer()
        self.foreign: list[str] = []
        """Keys that came with another body than at first."""
        self._lock = threading.Lock()
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Of the requests that were kept."""
        return [row for request in self.kept.values() for row in request.rows]

    @property
    def repeats(self) -> int:
        """Requests that came again, and counted."""
        return sum(Counter(request.key for request in self.arrived).values()) - len(self.kept)

    def take(self, request: Request) -> Answer:
        with self._lock:
            answer = self.answer(request)
            if answer.takes:
                self.arrived.append(request)
                first = self.kept.setdefault(request.key, request)
                if first.body != request.body:
                    self.foreign.append(request.key)
            return answer

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.receiver = self
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and break those that are open."""
        if self._server is not None:
            self._server.shutdown()
            self._server.break_all()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128
    receiver: Receiver

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def break_all(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients are killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers["content-length"]))
        if len(body) < int(headers["content-length"]):
            self.close_connection = True
            return
        answer = self.server.receiver.take(Request(self.command, self.path, headers, body))
        if answer.is_lost:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    do_PUT = do_POST  # noqa: N815


@contextmanager
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    found.start()
    try:
        yield found
    finally:
        found.stop()
