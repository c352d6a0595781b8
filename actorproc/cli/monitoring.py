"""`actorproc monitoring`: prints alert rules and a dashboard."""

from __future__ import annotations

from typing import Literal

import typer

from actorproc.admin.alerts import rules
from actorproc.admin.grafana import dashboard
from actorproc.cli.terminal import print_json


def run(what: Literal["alerts", "grafana"]) -> None:
    """Print the rules as YAML, or the dashboard as JSON."""
    if what == "alerts":
        typer.echo(rules(), nl=False)
    else:
        print_json(dashboard())
