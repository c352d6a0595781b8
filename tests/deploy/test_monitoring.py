"""The alert rules and the dashboard in deploy/ go with the metrics of a host."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from actorproc import Processor
from actorproc.runtime.clock import SYSTEM
from actorproc.server.metrics import HostCollector
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.deploy.tools import lint, prometheus
from tests.processor.doubling import QUICK, Double, fed
from tests.server.test_processor_metrics import scraped

ROOT = Path(__file__).parents[2]
ALERTS_FILE = ROOT / "deploy" / "monitoring" / "alerts.yml"
RULES = [rule for group in yaml.safe_load(ALERTS_FILE.read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((ROOT / "deploy" / "monitoring" / "grafana.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
PAGE = (ROOT / "docs" / "operations.md").read_text()
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


async def test_alerts_and_dashboard_use_metrics_that_exist(tmp_path: Path) -> None:
    expressions = QUERIES + [rule["expr"] for rule in RULES]
    assert len(expressions) > 25
    used = {PARTS.sub("", name) for expression in expressions for name in NAME.findall(expression)}
    processor = Processor(Double, source=fed(), container=tmp_path, **QUICK)
    await processor.run(until_end=True)
    of_dashboard = {f"actorproc_processor_{name}" for name, _ in await scraped(tmp_path)}
    assert used - {"messaging_consumer_group_name"} <= await metrics() | of_dashboard


@pytest.mark.parametrize("alert", [rule["alert"] for rule in RULES])
def test_each_alert_has_a_section_with_a_remedy(alert: str) -> None:
    assert f"### {alert}\n" in PAGE


def test_prometheus_accepts_the_rules() -> None:
    lint(prometheus("promtool"), "check", "rules", ALERTS_FILE)
