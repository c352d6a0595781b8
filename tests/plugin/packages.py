"""Writes packages as an installer leaves them: modules, and the metadata that names their entry points."""

from __future__ import annotations

from pathlib import Path

from actorproc import plugins


def installed_package(folder: Path, name: str, entry_points: dict[str, dict[str, str]], **modules: str) -> Path:
    """Install a package into `folder`.

    Args:
        entry_points: by group, without `actorproc.`, and name.
        modules: their code, by name.
    """
    folder.mkdir(exist_ok=True)
    for module, code in modules.items():
        (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[actorproc.{group}]\n{_lines(points)}" for group, points in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return folder


def look_again() -> None:
    """Have `plugins` read the metadata of all packages once more."""
    plugins._registered.cache_clear()
    plugins._found.cache_clear()


def _lines(points: dict[str, str]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in points.items())
