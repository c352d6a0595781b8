"""`python -m tests.releases.distributions FOLDER`: build sdist and wheel so that each build of a commit is the same.

Setuptools takes the times and modes of an sdist's files from the checkout, and the time of its archive from the clock.
So the sdist is packed anew, with the time of the commit, and the wheel is built from it.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent.parent
_UV = Path(sys.executable).parent / "uv"


def build(out: Path) -> tuple[Path, Path]:
    """Build sdist and wheel of the files that git knows, as they are in the checkout."""
    time = int(_git("log", "-1", "--format=%ct"))
    with TemporaryDirectory() as name:
        folder = Path(name)
        _copy(folder / "copy")
        _build("--sdist", folder / "copy", folder, time)
        made = next(folder.glob("*.tar.gz"))
        out.mkdir(parents=True, exist_ok=True)
        sdist = out / made.name
        sdist.write_bytes(_packed_anew(made, time))
    _build("--wheel", sdist, out, time)
    return sdist, next(out.glob("*.whl"))


def _copy(target: Path) -> None:
    for name in filter(None, _git("ls-files").split("\n")):
        source, copied = ROOT / name, target / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copied.symlink_to(source.readlink())
        elif source.is_file():
            copied.write_bytes(source.read_bytes())


def _build(what: str, source: Path, out: Path, time: int) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
    command = [str(part) for part in (_UV, "build", what, "--quiet", "--out-dir", out, source)]
    subprocess.run(command, check=True, capture_output=True, env=environment)


def _packed_anew(sdist: Path, time: int) -> bytes:
    """The same files in order of their names, with this time, no owner, and modes that no umask changes."""
    packed = sdist.with_suffix(".anew")
    with (
        tarfile.open(sdist) as old,
        packed.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=time) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
    return packed.read_bytes()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    for path in build(Path(sys.argv[1])):
        print(path)
