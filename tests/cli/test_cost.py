"""`actorproc cost`. tests/test_cost.py compares its figures with counted runs."""

from __future__ import annotations

from tests.cli.conftest import Run
from tests.cli.reading import lines

FLEET = ["--hosts", "3", "--partitions", "64", "--records", "1000"]


def monthly(run: Run, *how: str) -> dict[str, int]:
    (found,) = lines(run("cost", *FLEET, *how, "--json").stdout)
    return {each["purpose"]: each["requests"] for each in found["per_month"]}


def test_cost_of_an_idle_group_does_not_grow_with_its_partitions(run: Run) -> None:
    few = lines(run("cost", "--hosts", "3", "--partitions", "8", "--json").stdout)
    many = lines(run("cost", "--hosts", "3", "--partitions", "2000", "--json").stdout)
    assert few == many
    assert few[0]["dollars"]["S3 Standard"] > 3 * 1.8


def test_rarer_commits_cost_less(run: Run) -> None:
    often, rarely = (monthly(run, *how) for how in ([], ["--set", "commit_interval=50s"]))
    assert rarely["commits"] < often["commits"] / 8
    assert rarely["checkpoints"] < often["checkpoints"] / 8
    assert rarely["heartbeats"] == often["heartbeats"]


def test_without_a_log_only_the_group_and_the_commits_cost(run: Run) -> None:
    assert set(monthly(run, "--no-log", "--state")) == {
        "heartbeats", "looks at the heartbeats", "looks at the leases", "histories", "commits", "checkpoints",
        "keyed state",
    }  # fmt: skip


def test_the_table_ends_with_the_sum_and_the_origin_of_the_prices(run: Run) -> None:
    shown = run("cost", *FLEET).stdout.splitlines()
    assert shown[-2].split()[0] == "all"
    assert "April 2025" in shown[-1]


def test_a_negative_rate_is_refused(run: Run) -> None:
    result = run("cost", "--records", "-1")
    assert result.exit_code == 2
    assert "'-1': write a number, 0 or more" in result.output
