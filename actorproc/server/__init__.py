"""HTTP: health, metrics, state and the dashboard. Needs the extra `http`.

from actorproc.server import http_app
app.mount("/actorproc", http_app(processor))
"""

from __future__ import annotations

from actorproc.errors import UsageError
from actorproc.runtime.requirements import how_to_install

try:
    from actorproc.server.app import dashboard_app, http_app
except ImportError as error:
    raise UsageError(f"actorproc.server: {error}; {how_to_install('http')}") from error

__all__ = ["dashboard_app", "http_app"]
