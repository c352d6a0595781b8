"""Runs protoc over `.proto` texts of strangers: their names stay names, and time, memory and output have a limit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.type import date_pb2

LONGEST_TEXT = 8 * 2**20
"""Bytes of a schema with its references. Registries take about one MiB for each."""

LONGEST_NAME = 500
MOST_SOURCES = 500  # each is an argument of protoc

TIMEOUT = 60.0  # seconds; a schema takes 0.2
_CPU_SECONDS = 30
_MEMORY = 4 * 2**30  # of addresses, of which Python alone reserves a part
_OUTPUT = 64 * 2**20
_SHOWN = 4_000  # characters of protoc's errors

_RUN = """
import sys
from contextlib import suppress
from importlib.resources import files
from grpc_tools import protoc
with suppress(ImportError, ValueError, OSError):
    import resource
    for kind, most in zip((resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_AS), sys.argv[1].split(",")):
        hard = resource.getrlimit(kind)[1]
        most = int(most) if hard == resource.RLIM_INFINITY else min(int(most), hard)
        resource.setrlimit(kind, (most, most))
sys.exit(protoc.main(["protoc", *sys.argv[2:], f"-I{files('grpc_tools') / '_proto'}"]))
"""


def compiled(sources: Mapping[str, str], known: Sequence[FileDescriptorProto]) -> list[FileDescriptorProto]:
    """Descriptors of `.proto` files and of the files that they import.

    The texts are written to files with names of ours. protoc is told which imports they are by `-Iimport=file`. So a
    name from outside never becomes a path or an argument of its own, and may have spaces or any ending.

    Args:
        sources: texts by the names of the imports.
        known: other files that they may import.

    Raises:
        ValueError: they do not compile, they exceed a limit, or a name cannot be the name of an import.
    """
    for name in sources:
        _check_name(name)
    texts = [text.encode("utf-8", "surrogatepass") for text in sources.values()]
    if len(texts) > MOST_SOURCES or sum(map(len, texts)) > LONGEST_TEXT:
        raise ValueError(f"the schema and its references have more than {MOST_SOURCES} files, or {LONGEST_TEXT} bytes")
    with TemporaryDirectory(prefix="actorproc-") as created:
        folder = Path(created)
        arguments, paths = [], []
        for at, (name, text) in enumerate(zip(sources, texts, strict=True)):
            path = folder / f"{at}.proto"
            path.write_bytes(text)
            arguments.append(f"-I{name}={path}")
            paths.append(str(path))
        shipped = Path(date_pb2.__file__).parents[2]  # those of google/type; protoc has those of google/protobuf
        arguments += [f"-Igoogle={shipped / 'google'}", "--include_imports", f"--descriptor_set_out={folder / 'out'}"]
        if known:
            (folder / "known").write_bytes(FileDescriptorSet(file=known).SerializeToString())
            arguments.append(f"--descriptor_set_in={folder / 'known'}")
        _run([*arguments, *paths], folder)
        return list(FileDescriptorSet.FromString((folder / "out").read_bytes()).file)


def _check_name(name: str) -> None:
    """`:` and `=` have a meaning in protoc's argument, and protoc refuses paths that are not normal."""
    parts = name.split("/")
    if (
        not name.isprintable()
        or len(name) > LONGEST_NAME
        or any(part in ("", ".", "..") for part in parts)
        or any(character in ":;=\\," for character in name)
    ):
        raise ValueError(f"the reference {name[:LONGEST_NAME]!r} has no name that a .proto file could import")


def _run(arguments: list[str], folder: Path) -> None:
    limits = f"{_CPU_SECONDS},{_OUTPUT},{_MEMORY}"
    errors = folder / "errors"
    with errors.open("wb") as written:  # not a pipe: a file cannot grow beyond the limit
        try:
            done = subprocess.run(  # noqa: S603  # Python and protoc; each argument begins with text of ours
                [sys.executable, "-P", "-c", _RUN, limits, *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=written,
                cwd=folder, timeout=TIMEOUT, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ValueError(f"protoc: the schema does not compile within {TIMEOUT:g} s") from None
    if done.returncode == 0:
        return
    if done.returncode < 0:
        raise ValueError(f"protoc was ended by signal {-done.returncode}: the schema needs too much time or memory")
    with errors.open("rb") as read:
        text = read.read(_SHOWN).decode(errors="replace").replace(f"{folder}/", "")
    lines = [line for line in text.splitlines() if not line.startswith(("WARNING", "W0"))]
    raise ValueError(f"protoc: {'; '.join(lines)}")
