"""`actorproc debug`: writes a dead letter as a test, and runs it under the debugger."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from actorproc.admin.dead_letters import DeadLetters, LetterId
from actorproc.admin.debug_script import ScriptOptions, debug_script
from actorproc.cli.common import OpenedProcessor, load_settings, pairs, run_async
from actorproc.cli.loading import load_handler
from actorproc.cli.terminal import print_line
from actorproc.config.loading import PREFIX, read_config
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.checks import checked_handler
from actorproc.handler.options import load_options
from actorproc.state.reading import read_state

_SHOWN = {name for name, field in Settings.model_fields.items() if field.repr}  # the test needs no store


def run(
    letter: str,
    handler: str,
    opened: OpenedProcessor,
    options: Sequence[str],
    file: Path | None,
    no_run: bool,
    config: Path | None,
    settings: Sequence[str],
) -> None:
    """Write the test, and run it. The exit code is pytest's."""
    wanted = LetterId.parse(letter)
    how = _options(checked_handler(load_handler(handler)), handler, options, config, settings)
    path = file or Path(f"test_letter_{re.sub(r'[^A-Za-z0-9]+', '_', str(wanted))}.py")
    if path.exists():
        raise UsageError(f"{path} exists: run it with python -m pytest --pdb {path}, or give another name with --file")
    if not no_run and importlib.util.find_spec("pytest") is None:
        raise UsageError("pytest is not installed: install it, or give --no-run to write the file only")

    async def work() -> str:
        async with opened as (store, layout, _):
            found = await (await DeadLetters.opened(store, layout)).find(wanted)
            state = await read_state(store, layout, wanted.partition)
        return debug_script(found, how, state if state.names else None)

    path.write_text(run_async(work), encoding="utf-8")
    print_line(f"wrote {path}")
    if not no_run:
        command = [sys.executable, "-m", "pytest", "-q", "--pdb", str(path)]
        raise typer.Exit(subprocess.run(command, check=False).returncode)  # noqa: S603  # this Python, our arguments


def _options(
    handler: type[PartitionHandler], spec: str, given: Sequence[str], config: Path | None, settings: Sequence[str]
) -> ScriptOptions:
    """Options of the handler, from where `serve` takes them. Secrets among the settings are left out."""
    keywords = pairs("--option", given)
    load_settings(config, settings)  # refuses wrong ones, as the next line does
    load_options(handler, keywords, config)
    names = {f"{PREFIX}OPTION_{name}".upper(): name for name in handler.Options.model_fields if name not in keywords}
    return ScriptOptions(
        handler=spec, options={**read_config(config).get("options", {}), **keywords},
        variables={names[variable.upper()]: variable for variable in os.environ if variable.upper() in names},
        config=str(config) if config else None,
        settings={name: text for name, text in pairs("--set", settings).items() if name in _SHOWN},
    )  # fmt: skip
