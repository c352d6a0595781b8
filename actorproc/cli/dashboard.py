"""`actorproc dashboard`, and `serve --http`: the HTTP server, imported only where it is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from actorproc.cli.common import load_settings, run_async
from actorproc.processor import Processor
from actorproc.stores import open_store


def run(container: str, address: str, config: Path | None, given: Sequence[str] | None) -> None:
    """Serve the dashboard of a container until a signal comes."""
    from actorproc.cli.terminal import print_line
    from actorproc.server.access import is_loopback, parse_address
    from actorproc.server.serving import serve_dashboard

    settings, (host, port) = load_settings(config, given), parse_address(address)

    async def work() -> None:
        async with open_store(container, settings):
            pass  # a wrong container is refused before anybody looks
        shown = host if is_loopback(host) else "this machine"
        print_line(f"dashboard of {container}: http://{shown}:{port}/")
        await serve_dashboard(container, settings, host, port)

    run_async(work)


def serving(processor: Processor, address: str) -> AbstractAsyncContextManager[object]:
    """Serve the processor's app meanwhile."""
    from actorproc.server.access import parse_address
    from actorproc.server.serving import serving

    return serving(processor, *parse_address(address))


def address_of_worker(address: str | None, index: int) -> list[str]:
    """The option of worker number `index`, whose port is as much higher."""
    if address is None:
        return []
    from actorproc.server.access import parse_address

    host, port = parse_address(address, index)
    return ["--http", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
