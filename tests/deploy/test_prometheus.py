"""A real Prometheus scrapes a host with its read token, and evaluates the alert rules and the dashboard's queries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import yaml

from actorproc import Processor
from actorproc.server.serving import serving
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.deploy.test_monitoring import ALERTS_FILE, QUERIES, RULES
from tests.deploy.tools import prometheus
from tests.processor.doubling import QUICK, Double, fed
from tests.servers import free_ports, running

READ_TOKEN = "r" * 16


class Prometheus:
    """A running Prometheus that scrapes a target five times a second."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=f"{url}/api/v1/", trust_env=False)

    async def ask(self, path: str, **parameters: str) -> Any:
        answer = (await self._http.get(path, params=parameters)).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    async def value(self, query: str) -> float | None:
        """Of a query with one series; None if there is none."""
        found = (await self.ask("query", query=query))["result"]
        return float(found[0]["value"][1]) if found else None

    async def close(self) -> None:
        await self._http.aclose()


@asynccontextmanager
async def scraping(binary: Path, target: str, folder: Path) -> AsyncIterator[Prometheus]:
    """Prometheus with the alert rules, in its own folder. It scrapes once with the token, once with another one."""
    (folder / "right").write_text(READ_TOKEN)
    (folder / "wrong").write_text("w" * 16)
    settings = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(ALERTS_FILE)],
        "scrape_configs": [
            {
                "job_name": token, "authorization": {"credentials_file": token},
                "static_configs": [{"targets": [target]}],
            }
            for token in ("right", "wrong")
        ],
    }  # fmt: skip
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))

    def command() -> tuple[list[str], str, str]:
        (port,) = free_ports(1)
        url = f"http://127.0.0.1:{port}"
        options = [f"--web.listen-address=127.0.0.1:{port}", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        return [str(binary), *options], url, f"{url}/-/ready"

    with running("Prometheus", command, folder, {}) as url:
        found = Prometheus(url)
        try:
            yield found
        finally:
            await found.close()


@asynccontextmanager
async def serving_host() -> AsyncIterator[str]:
    """Address of a host that has processed forty records, and asks for a token."""
    settings = {**QUICK, "http_read_token": READ_TOKEN, "http_partition_metrics": True}
    processor = Processor(Double, source=fed(), container=Store(MemoryStore()), host="worker-0", **settings)
    async with processor, serving(processor, "127.0.0.1", 0) as url:
        yield url.removeprefix("http://").rstrip("/")


async def until_equal(prometheus: Prometheus, query: str, value: float) -> None:
    with anyio.fail_after(30):
        while await prometheus.value(query) != value:
            await anyio.sleep(0.1)


async def test_a_real_prometheus_scrapes_a_host_and_evaluates_rules_and_dashboard(tmp_path: Path) -> None:
    binary = prometheus()  # before the host: fetching it takes seconds
    async with serving_host() as host, scraping(binary, host, tmp_path) as found:
        await until_equal(found, 'actorproc_records_processed_total{processor="Double",host="worker-0"}', 40)
        await until_equal(found, "sum(actorproc_partition_committed_sequence)", 4 * 9)
        await until_equal(found, 'up{job="wrong"}', 0)
        targets = {one["labels"]["job"]: one["lastError"] for one in (await found.ask("targets"))["activeTargets"]}
        assert targets.pop("right") == ""
        assert "401" in targets.pop("wrong")
        for query in QUERIES:
            await found.ask("query", query=as_grafana_sends(query))
        assert await evaluated_rules(found) == {rule["alert"]: ("ok", "inactive") for rule in RULES}


async def evaluated_rules(prometheus: Prometheus) -> dict[str, tuple[str, str]]:
    """Health and state of each alert rule, once all were evaluated after the first scrape of the host."""
    found: dict[str, tuple[str, str]] = {}
    with anyio.move_on_after(30):
        while not found or set(found.values()) != {("ok", "inactive")}:
            (group,) = (await prometheus.ask("rules"))["groups"]
            found = {rule["name"]: (rule["health"], rule["state"]) for rule in group["rules"]}
            await anyio.sleep(0.1)
    return found


def as_grafana_sends(expression: str) -> str:
    """The query with values for the dashboard's variables."""
    return expression.replace("$__rate_interval", "1m").replace("$__range", "1h").replace("$processor", ".*")
