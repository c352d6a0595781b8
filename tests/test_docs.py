"""The pages: generated ones are current, links work, code compiles. `python -m tests.test_docs` writes them."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorproc import plugins
from actorproc.config.settings import ORDERED, Settings
from actorproc.config.store_options import store_options

ROOT = Path(__file__).parent.parent
SETTINGS = ROOT / "docs" / "settings.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
LOGS = ROOT / "docs" / "logs.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = {"tests/test_1042.py"}  # files that readers of a page write
BOUND = {"processor", "host", "partition", "epoch"}  # and not always passed


HEAD = """\
# Settings

A setting has one name, which can be given in four ways. Each beats the ones below it:

1. a keyword of `Processor`, or `--set name=value` on the command line;
2. an environment variable `ACTORPROC_<NAME>`;
3. a line of `actorproc.toml` in the working directory, or of the file given with `--config`;
4. the default.

Times are in seconds, or a number with `ms`, `s`, `m`, `h` or `d`. Sizes are in bytes, or a number with `kB`, `MB`, `GB`, `KiB`, `MiB` or `GiB`.

```toml
# actorproc.toml
commit_interval = "1s"
s3_endpoint = "http://127.0.0.1:9000"

[options]            # the handler's own
table = "flights"
```

Settings come before the tables in the file. Two settings are tables: `[source_options]`, for the client of the source, and `[schema_registry_options]`. Other tables than these and `[options]` are refused. `--source`, `--container`, `--name` and `--host` are options of the command line, not settings.

A wrong setting is refused at the start, with its name, its value and what is allowed. Settings that contradict each other are refused, too:

- `lease_expiration_interval` must be more than twice `lease_renew_interval`.
- A setting must be at most another one: {ordered}.
- `auto_commit = false` does not go with `delivery = "at-most-once"`, nor with ready-made handlers (`RecordHandler`, `JsonRows`, `Capture`), which never commit themselves.
- `delivery = "at-most-once"` does not go with a handler whose `exclusive` is true, such as `KafkaForwarder`: nothing would be tried again.

An environment variable `ACTORPROC_<NAME>` that is not a setting is ignored.

The last settings of the table belong to stores: `s3_*` to S3, `az_*` to [Azure Blob Storage](stores.md), `gs_*` to [Google Cloud Storage](stores.md). Stores of [other packages](extend.md) have settings in the same way; their names begin with the scheme of the store's URLs. Their values are checked when such a store is opened; other stores ignore them. The value `@PATH` stands for the content of a file, for secrets; a value that begins with `@` is written with two. `s3_access_key` and `s3_secret_key` come together or not at all; of `az_account_key` and `az_sas_token` one is given, or none.

| setting | default | description |
|---|---|---|
"""  # noqa: E501  # prose in Markdown is not broken


def settings_page() -> str:
    """docs/settings.md, from the fields of `Settings` and the options of stores."""
    lines = []
    of_stores = store_options(f"{scheme}_" for scheme in plugins.names(plugins.STORES))
    for name, field in (Settings.model_fields | of_stores).items():
        default = "" if field.default is None else f"`{field.default}`"
        lines.append(f"| `{name}` | {default} | {field.description} |\n")
    ordered = ", ".join(f"`{small}` at most `{large}`" for small, large, _ in ORDERED)
    return HEAD.replace("{ordered}", ordered) + "".join(lines)


def test_the_page_of_settings_lists_them_all_as_they_are() -> None:
    assert SETTINGS.read_text() == settings_page(), "run: python -m tests.test_docs"


def test_the_page_of_the_architecture_has_every_module_on_its_floor() -> None:
    """The rows of the table are the layers that lint-imports keeps."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [sorted(re.split(" [|:] ", names)) for names in contract["layers"]]
    table = ARCHITECTURE.read_text().partition("| floor | where | duty |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [row.split("|") for row in table.splitlines()]
    assert [sorted(re.findall(r"`(\w+)/?`", row[2])) for row in rows] == layers
    assert [int(row[1]) for row in rows] == list(range(len(layers), 0, -1))


def test_the_picture_of_the_house_shows_every_room() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "house.py"))["drawn"]
    assert (ROOT / "docs" / "house.svg").read_text() == drawn(), "run: python docs/house.py"


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^):]*))?\)", page.read_text()):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in _anchors(file), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"(?<![\w/])((?:\w+/)+\w+\.py)\b", page.read_text())) - EXAMPLES
    assert [path for path in named if not (ROOT / path).exists() and not (ROOT / "actorproc" / path).exists()] == []


def test_every_page_can_be_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md"]
    assert [name for name in pages if f"(docs/{name})" not in readme] == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "search" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_the_pages_compiles(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        compile(block, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_on_spark_asks_for_delays_that_its_flights_have() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    [(kinds, less)] = re.findall(r"% (\d+) - (\d+) }", page)
    asked = [int(minutes) for minutes in re.findall(r"minutes > (\d+)", page)]
    assert asked
    assert max(asked) < int(kinds) - 1 - int(less), "else whoever types it gets nothing"


def test_the_page_of_log_events_is_complete() -> None:
    rows = re.findall(r"^\| (`[^|]+) \| (\w+) \| ([^|]*)\|", LOGS.read_text(), re.MULTILINE)
    told = {name: (level, fields) for names, level, fields in rows for name in re.findall(r"`([\w.]+)`", names)}
    levels: dict[str, str] = {}
    passed: dict[str, set[str]] = {}
    for event, level, fields in _logged_events():
        levels[event] = level
        passed.setdefault(event, set()).update(fields)
    made = {f"{who}.stopping": "info" for who in ("processor", "spark")}  # names put together by `Signals`
    assert {name: level for name, (level, _) in told.items()} == made | levels
    for event, given in passed.items():
        fields = told[event][1]
        named, open_ended = set(re.findall(r"`(\w+)`", fields)), "..." in fields
        assert given - BOUND <= named or open_ended, f"{event} has {given - named}, too"
        assert named <= given | BOUND or "**" in given, f"{event} has no {named - given}"


def _logged_events() -> Iterator[tuple[str, str, set[str]]]:
    levels = {"info": "info", "warning": "warning", "error": "error", "exception": "error", "say": "warning"}
    for folder in ("actorproc", "stores", "handlers"):
        for path in (ROOT / folder).rglob("*.py"):
            if {"testing", "simulation"} & set(path.parts):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Attribute(attr=name) | ast.Name(id=name),
                        args=[ast.Constant(value=str() as event), *_],
                        keywords=keywords,
                    ) if name in levels and re.fullmatch(r"\w+\.\w+", event):
                        fields = {keyword.arg or "**" for keyword in keywords}
                        if name == "exception" or "exc_info" in fields:
                            fields = fields - {"exc_info"} | {"exception"}
                        yield event, levels[name], fields


def test_nothing_says_to_install_actorproc_from_an_index_that_does_not_have_it() -> None:
    """Remove this test with the first release there."""
    code = [
        path for folder in ("actorproc", "stores", "handlers", "examples") for path in (ROOT / folder).rglob("*.py")
    ]
    wanted = re.compile(r"(pip|pipx|uv pip|uv tool) install( -\S+)* '?actorproc\b(?!/)|uv add( -\S+)* '?actorproc\b")
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in (*PAGES, *code)
        if path.name != "CHANGELOG.md"
        for found in wanted.finditer(path.read_text())
    ]
    assert wrong == []


if __name__ == "__main__":
    SETTINGS.write_text(settings_page())
