"""Serves an app: in a thread beside a processor, so that it answers while a handler blocks the event loop, or alone."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.processor import Processor
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.logger import get_logger
from actorproc.server.access import Tokens, check_exposure
from actorproc.server.app import dashboard_app, http_app

logger = get_logger(__name__)

_BEAT_EVERY = 0.5  # seconds between two questions to the event loop whether it answers
_STOPPING = 2  # seconds that open connections have when the server stops


class LoopBeat:
    """Whether an event loop answers, as another thread sees it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked_at: float | None = None  # None: the last question was answered

    def silence(self) -> float:
        """Seconds for which the loop has not answered. Asked in the other thread's loop."""
        asked = self._asked_at
        return 0.0 if asked is None else SYSTEM.monotonic() - asked

    async def ask(self) -> None:
        """Ask again and again. Runs in the other thread's loop."""
        while True:
            if self._asked_at is None:
                self._asked_at = SYSTEM.monotonic()
                self._loop.call_soon_threadsafe(self._answer)
            await SYSTEM.sleep(_BEAT_EVERY)

    def _answer(self) -> None:
        self._asked_at = None


@asynccontextmanager
async def serving(processor: Processor, host: str, port: int) -> AsyncIterator[str]:
    """Serve the processor's app in a thread of its own while the block runs. Yields its URL.

    Raises:
        UsageError: the address needs a token, or cannot be listened on.
    """
    listening, url = _listen(host, port, processor.settings)
    beat = LoopBeat(asyncio.get_running_loop())
    server = _server(http_app(processor, blocked=beat.silence, own_server=True))

    async def main() -> None:
        asking = asyncio.create_task(beat.ask())
        await server.serve([listening])
        asking.cancel()

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="actorproc-http", daemon=True)
    thread.start()
    logger.info("http.listening", url=url)
    try:
        yield url
    finally:
        server.should_exit = True
        await SYSTEM.run_in_thread(thread.join, 2.0 * _STOPPING)


async def serve_dashboard(container: str, settings: Settings, host: str, port: int) -> None:
    """Serve the dashboard of a container until a signal comes.

    Raises:
        UsageError: the address needs a token, or cannot be listened on.
    """
    listening, url = _listen(host, port, settings)
    logger.info("http.listening", url=url)
    await _server(dashboard_app(container, settings, own_server=True)).serve([listening])


def _listen(host: str, port: int, settings: Settings) -> tuple[socket.socket, str]:
    check_exposure(host, Tokens(settings))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UsageError(f"--http {host}:{port}: cannot listen there: {error.strerror or error}") from None
    shown = f"[{host}]" if ":" in host else host
    return listening, f"http://{shown}:{listening.getsockname()[1]}/"


def _server(app: ASGIApp) -> uvicorn.Server:
    config = uvicorn.Config(
        app, loop="asyncio", log_config=None, access_log=False, server_header=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=_STOPPING,
    )  # fmt: skip
    return uvicorn.Server(config)
