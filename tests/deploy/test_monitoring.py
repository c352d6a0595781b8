"""The alert rules and the dashboard that `actorproc monitoring` prints go with the metrics of a host."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from actorproc import Processor
from actorproc.admin.alerts import ALERTS
from actorproc.cli import app
from actorproc.runtime.clock import SYSTEM
from actorproc.server.metrics import HostCollector
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.deploy.tools import lint, prometheus
from tests.processor.doubling import QUICK, Double, fed
from tests.server.test_processor_metrics import scraped

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
NAME = re.compile(r"\b(?:actorproc|messaging)_\w+")
PARTS = re.compile(r"_(?:bucket|total)$")


async def metrics() -> set[str]:
    """Names of the metrics of a host that has worked."""
    processor = Processor(Double, source=fed(), container=Store(MemoryStore()), **QUICK)
    await processor.run(until_end=True)
    collector = HostCollector(
        lambda: (processor.statistics(), 0.0), source="x", wall=SYSTEM.wall, max_process_time=300, per_partition=False
    )
    return {family.name for family in collector.collect()}


def printed(what: str) -> str:
    result = CliRunner().invoke(app, ["monitoring", what])
    assert result.exit_code == 0, result.output
    return result.output


async def test_alerts_and_dashboard_use_metrics_that_exist(tmp_path: Path) -> None:
    dashboard = json.loads(printed("grafana"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [rule for group in yaml.safe_load(printed("alerts"))["groups"] for rule in group["rules"]]
    expressions += [rule["expr"] for rule in rules]
    assert len(expressions) > 25
    used = {PARTS.sub("", name) for expression in expressions for name in NAME.findall(expression)}
    processor = Processor(Double, source=fed(), container=tmp_path, **QUICK)
    await processor.run(until_end=True)
    of_dashboard = {f"actorproc_processor_{name}" for name, _ in await scraped(tmp_path)}
    assert used - {"messaging_consumer_group_name"} <= await metrics() | of_dashboard


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_each_alert_has_a_section_that_says_what_to_do(alert: tuple[str, ...]) -> None:
    assert f"### {alert[0]}\n" in PAGE


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(printed("alerts"))
    lint(prometheus("promtool"), "check", "rules", file)
