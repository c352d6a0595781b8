"""The ASGI apps: of a host, and of a dashboard without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from actorproc.config.settings import Settings
from actorproc.processor import Processor
from actorproc.server.access import Guard, Tokens
from actorproc.server.acts import ActRoutes
from actorproc.server.feeds import Feeds
from actorproc.server.fleet_routes import FleetRoutes
from actorproc.server.host_routes import HostRoutes
from actorproc.server.letter_routes import LetterRoutes
from actorproc.server.processor_metrics import ProcessorMetrics
from actorproc.server.resets import ResetRoutes

STATIC = Path(__file__).parent / "static"

_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"


def http_app(
    processor: Processor, *, blocked: Callable[[], float] = lambda: 0.0, own_server: bool = False
) -> Starlette:
    """The ASGI app of one host: `/livez`, `/readyz`, `/metrics`, `/state`, `/events`, and the dashboard at `/`.

    Mount it in an application that runs the processor. Tokens come from the settings `http_token` and
    `http_read_token`; without them everybody who reaches the app may read.

    Args:
        blocked: seconds for which the processor's event loop has not answered.
        own_server: nothing else is served under the app's names, so only loopback names are answered without a token.

    Raises:
        SettingsError: the file of a token cannot be read.
    """
    tokens = Tokens(processor.settings)
    host = HostRoutes(processor, tokens, blocked)
    fleet = FleetRoutes(Feeds(processor.container, processor.settings), processor.name)
    more = _routes_without_feed(processor.container, processor.settings)
    return _app([*host.routes(), *fleet.routes(), *more], tokens, own_server=own_server)


def dashboard_app(container: str, settings: Settings, *, own_server: bool = False) -> Starlette:
    """The dashboard of all processors in a container with their `/metrics`, served by no host of theirs. Otherwise as
    `http_app`.
    """
    feeds = Feeds(container, settings)
    routes = [*ProcessorMetrics(feeds).routes(), *FleetRoutes(feeds, None).routes()]
    return _app([*routes, *_routes_without_feed(container, settings)], Tokens(settings), own_server=own_server)


def _routes_without_feed(container: str, settings: Settings) -> list[Route]:
    return [
        *LetterRoutes(container, settings).routes(),
        *ActRoutes(container, settings).routes(),
        *ResetRoutes(container, settings).routes(),
    ]


def _app(routes: list[Route], tokens: Tokens, *, own_server: bool) -> Starlette:
    pages: list[BaseRoute] = [Route("/", _page), Mount("/static", StaticFiles(directory=STATIC))]
    middleware = [Middleware(GZipMiddleware, compresslevel=5), Middleware(Guard, tokens, own_server=own_server)]
    return Starlette(routes=[*routes, *pages], middleware=middleware)


async def _page(request: Request) -> Response:
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
    return FileResponse(STATIC / "index.html", headers=headers)
