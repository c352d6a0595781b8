"""Where settings come from: the file, which is read, and variables of the environment, where one that is mistyped is found."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from actorproc.errors import SettingsError

PREFIX = "ACTORPROC_"
OF_COMMANDS = ("source", "container", "name", "host", "log_level", "debug")
"""Options of the command line that have a variable, and are no settings."""

TYPO = 0.8
"""How like a known name that of a variable must be to be one mistyped: others may be somebody else's."""

_TYPO_OF_COMMANDS = 0.88  # they are short, common words
_NEARLY_OPTION = re.compile("options|opton|opion|opions|optoin|optoins|otpion|otpions")
_LINE = re.compile(r"\(at line (\d+),")
_BARE_VALUE = re.compile(r"""\s*[\w.-]+\s*=\s*([^\s"'\[{#]+)""")
_TEXT = 'text needs quotes, a number with its unit, too: "1s"'


def read_config(config: str | Path | None) -> dict[str, Any]:
    """The tables of a configuration file; {} if none is named and `actorproc.toml` is not here."""
    path = Path(config or "actorproc.toml")
    if config is None and not path.is_file():
        return {}
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the settings file {path}: {error}{_quotes(text, str(error))}") from None


def _quotes(text: str, error: str) -> str:
    """The end of a message of TOML's parser: what is most often wrong with a line that has a bare value. Not the value itself, which
    may be a secret."""
    found, lines = _LINE.search(error), text.splitlines()
    bare = _BARE_VALUE.match(lines[int(found[1]) - 1]) if found and int(found[1]) <= len(lines) else None
    if bare is None:
        return ""
    return "; write true or false" if bare[1].lower() in ("true", "false") else f"; {_TEXT}"


def did_you_mean(name: str, known: Iterable[str], like: float = 0.6) -> str:
    """The end of a message about a name that is unknown: the known one that may be meant; empty if there is none."""
    near = get_close_matches(name, known, n=1, cutoff=like)
    return f"; did you mean {near[0]}?" if near else ""


def check_environment(settings: Collection[str], environment: Mapping[str, str] = os.environ) -> None:
    """A variable that is nearly a setting, or nearly one of the commands', is a typing error: it must not be passed over in
    silence."""
    for variable in environment:
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or name.startswith("option_"):
            continue  # an option is the handler's, and may be called like a setting
        if name in settings or name in OF_COMMANDS:
            continue
        head, _, option = name.partition("_")
        if option and _NEARLY_OPTION.fullmatch(head):
            raise SettingsError(f"{variable} in the environment: an option of the handler is {PREFIX}OPTION_<NAME>")
        if near := did_you_mean(name, settings, TYPO):
            raise SettingsError(f"{variable} in the environment: there is no such setting{near}")
        if meant := get_close_matches(name, OF_COMMANDS, n=1, cutoff=_TYPO_OF_COMMANDS):
            raise SettingsError(
                f"{variable} in the environment: there is no such variable; did you mean {PREFIX}{meant[0].upper()}?"
            )


def mistyped(wanted: str, environment: Mapping[str, str] = os.environ) -> str:
    """That a variable may have been meant to be the `wanted` one, which is missing: so it may be less like it than where nothing
    is. Empty if none is like it."""
    of_commands = {f"{PREFIX}{name.upper()}" for name in OF_COMMANDS}
    others = [name for name in environment if name.startswith(PREFIX) and name not in of_commands]
    near = get_close_matches(wanted.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in others], 1, TYPO)
    return f"{PREFIX}{near[0]} is in the environment; did you mean {wanted}?" if near else ""
