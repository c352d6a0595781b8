"""Commands in odd surroundings: they work, or fail with one line that names the problem. No traceback.

One process imports the command line once, and forks for each command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from tests.cli.conftest import QUICK, actorproc

ODD = "é─😀\x9bÿ"

COMMANDS = [
    "--help", "--version", "produce --log {e} {f}", "serve app:Odd --source {e} {p} --until-end",
    "status {p} --source {e}", "status {p} --json", "top {p} --once", "explain 0 {p}", "trace 0:0 {p} --source {e}",
    "pause {p}", "resume {p}", "drain nobody {p}", "audit {p}",
    "audit {p} --json", "processors list --container {c}", "processors describe {p}", "logs list {d}",
    "logs describe {e}", "logs create {d}/other --partitions 1", "peek --source {e}", "peek --source {e} --json",
    "output {p}", "output {p} --json", "state show {p}", "schema check app:Odd {p}",
    "dead-letters list {p}", "dead-letters list {p} --json", "dead-letters show 0:1 {p}",
    "dead-letters replay {p}", "debug 0:1 app:Odd {p} --no-run", "dead-letters purge {p} --yes",
    "readers list {p}", "readers add mine {p} --at 0",
    "readers remove mine {p}", "trim {p}", "compact {p} --dry-run", "verify {p}",
    "doctor {c}", "cost", "cost --json", "checkpoints show {p}",
    "checkpoints reset {p} --source {e} --to earliest",
]  # fmt: skip

DRIVER = """
import json, os, sys, tempfile
from actorproc.__main__ import main
import actorproc.cli, actorproc.processor, actorproc.admin.fleet_watch, actorproc.produce.producer  # each fork has them

encoding, folder, *lines = sys.argv[1:]
found = {}
for line in lines:
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    if not (child := os.fork()):
        if folder:
            os.mkdir(folder)
            os.chdir(folder)
            os.rmdir(folder)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        if encoding:
            sys.stdout.reconfigure(encoding=encoding, errors="strict")
            sys.stderr.reconfigure(encoding=encoding)
        sys.argv = ["actorproc", *line.split("\\x1f")]
        code = 70
        try:
            main()
            code = 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else ending.code is not None
        except BaseException:
            import traceback
            traceback.print_exc()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:
            code = 71
        os._exit(code or 0)
    _, status = os.waitpid(child, 0)
    out.seek(0), err.seek(0)
    found[line] = [os.waitstatus_to_exitcode(status), out.read().decode("latin-1"), err.read().decode("latin-1")]
json.dump(found, sys.stdout)
"""


class Odd(PartitionHandler):
    output_schema = "text string"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if record.sequence % 2:
                raise ValueError(f"odd {ODD}")
            ctx.emit(record, {"text": bytes(record.value or b"").decode()})


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")

    async def processed() -> None:
        async with Producer(str(folder / "events"), partitions=1) as producer:
            await producer.send_many([ODD.encode()] * 4, keys=[ODD] * 4)
        await Processor(Odd, source=str(folder / "events"), container=str(folder / "state"), **QUICK).run(
            until_end=True
        )

    anyio.run(processed)
    (folder / "lines.txt").write_bytes(b"one\n")
    (folder / "app.py").write_text("from tests.cli.test_surroundings import Odd")
    return folder


def ended(folder: Path, encoding: str, gone: str = "") -> dict[str, tuple[int, str, str]]:
    place = f"--name Odd --container {folder / 'state'}"
    lines = [
        line.format(p=place, c=folder / "state", e=folder / "events", f=folder / "lines.txt", d=folder)
        for line in COMMANDS
    ]
    root = Path(__file__).parents[2]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ACTORPROC_")}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, encoding, gone, *("\x1f".join(line.split()) for line in lines)],
        cwd=folder, env={**variables, "PYTHONPATH": str(root), "NO_COLOR": "1"}, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    return {line.replace("\x1f", " "): tuple(found) for line, found in json.loads(done.stdout).items()}


@pytest.mark.parametrize(
    "encoding", ["latin-1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("utf-8", "ascii", "utf-16-le"))]
)
def test_no_command_fails_as_stdout_lacks_a_character(encoding: str, folder: Path) -> None:
    found = ended(folder, encoding)
    for line, (code, out, err) in found.items():
        assert code == 2 * ("nobody" in line), (line, out[-500:], err[-500:])
        assert "Traceback" not in err.replace("\0", ""), line
    rows = next(out for line, (_, out, _) in found.items() if line.startswith("output") and line.endswith("--json"))
    text = rows.encode("latin-1").decode(encoding)
    assert [json.loads(row)["text"] for row in text.splitlines()][:2] == [ODD] * 2


def test_a_deleted_working_directory_is_one_line(folder: Path, tmp_path: Path) -> None:
    found = ended(folder, "", str(tmp_path / "gone"))
    for line, (code, _, err) in found.items():
        if line in ("--help", "--version"):
            assert (code, err) == (0, "")
        else:
            assert (code, err.count("\n")) == (2, 1), (line, err)
            assert err.startswith("error: the working directory cannot be used: No such file or directory"), line


def test_a_settings_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "actorproc.toml").write_text('commit_interval = "soon"\n', encoding="utf-8-sig")
    done = actorproc("cost", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "actorproc.toml: commit_interval" in done.stderr


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "ascii:strict", "cp1252"])
def test_the_encoding_of_the_environment_is_obeyed(encoding: str, folder: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = actorproc("output", "--name", "Odd", "--container", "state", cwd=folder, env=environment, encoding="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2500\\ud83d\\ude00" in done.stdout
    assert " ----" in done.stdout


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_reader_with_another_encoding_may_leave_early(encoding: str, folder: Path) -> None:
    command = f"{sys.executable} -m actorproc cost --json | head -c 9; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
