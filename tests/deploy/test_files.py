"""actorproc accepts the commands in deploy/. Each file is accepted by the tool that reads it, if that is installed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main
import yaml

from actorproc.cli import app
from actorproc.config.settings import Settings
from actorproc.config.store_options import store_options
from tests.deploy.tools import lint

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
ENVIRONMENT = {"ACTORPROC_SOURCE": "s3://b/e", "ACTORPROC_CONTAINER": "s3://b/s", "ACTORPROC_NAME": "Delays"}


def commands() -> list[list[str]]:
    """The arguments of every container and service that runs actorproc."""
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]
    found = [service["command"] for name, service in compose.items() if name not in ("s3", "base")]
    pod = yaml.safe_load((KUBERNETES / "base" / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    found += [container["args"] for container in pod["containers"]]
    unit = (DEPLOY / "systemd" / "actorproc@.service").read_text()
    for line in re.findall(r"^ExecStart=\S*/actorproc (.*)$", unit, re.MULTILINE):
        found.append(shlex.split(line.replace("${HANDLER}", "app:Delays")))
    return found


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_each_command_has_valid_arguments(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    group: Any = typer.main.get_command(app)
    command = group.get_command(click.Context(group), arguments[0])
    command.make_context(arguments[0], arguments[1:])  # parses and checks, and runs nothing


def test_each_variable_is_a_setting_or_an_option() -> None:
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.suffix in (".yml", ".yaml", ".service", ".env")]
    names = {name for text in texts for name in re.findall(r"\bACTORPROC_([A-Z0-9_]+)\b", text)}
    options = {"SOURCE", "CONTAINER", "NAME", "HOST"}
    found = {name.lower() for name in names - options}
    assert found <= {*Settings.model_fields, *store_options(found)}


def test_the_time_for_draining_is_longer_than_a_drain_may_take() -> None:
    drain = Settings().max_handoff_time + 15
    pod = yaml.safe_load((KUBERNETES / "base" / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    hook = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]["host"]["stop_grace_period"]
    unit = (DEPLOY / "systemd" / "actorproc@.service").read_text()
    assert pod["terminationGracePeriodSeconds"] - hook > drain
    assert int(compose.removesuffix("s")) > drain
    assert int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > drain


@pytest.mark.parametrize("name", ["Dockerfile", "app.Dockerfile"])
def test_hadolint_accepts_the_dockerfiles(name: str) -> None:
    lint("hadolint", DEPLOY / name)


def test_the_compose_file_fits_its_schema() -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "docker-compose.yml")


@pytest.mark.parametrize("name", ["base", "keda"])
def test_kubernetes_accepts_the_output_of_kustomize(name: str, tmp_path: Path) -> None:
    built = lint("kubectl", "kustomize", KUBERNETES / name)
    documents = [d for d in yaml.safe_load_all(built) if not d["apiVersion"].startswith("keda.sh/")]
    (tmp_path / "built.yaml").write_text(yaml.safe_dump_all(documents))
    lint("kubernetes-validate", "--strict", tmp_path / "built.yaml")


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd" / "actorproc@.service").read_text()
    (tmp_path / "actorproc@delays.service").write_text(unit.replace("/opt/actorproc/bin/actorproc", "/bin/true"))
    lint("systemd-analyze", "verify", tmp_path / "actorproc@delays.service")
