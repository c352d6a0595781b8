"""Each version opens the stored data of earlier versions, and continues from there."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from actorproc.admin.dead_letters import DeadLetters, Selection
from actorproc.admin.read_output import output_rows
from actorproc.admin.verify import verify
from actorproc.config.settings import Settings
from actorproc.group.membership import read_group
from actorproc.state.reading import read_state
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store
from tests.releases import (
    CONTAINER,
    FOLDER,
    LAYOUT,
    LOG,
    PARTITIONS,
    RECORDS,
    REPLAYED,
    ROUNDS,
    append,
    archive,
    process,
    write,
)  # fmt: skip

NAMES = [str(number) for number in range(PARTITIONS)]


@pytest.fixture(params=sorted(FOLDER.glob("*.zip")), ids=lambda path: path.stem)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.unpack_archive(request.param, tmp_path)
    return tmp_path


async def check(store: Store, numbers: range) -> None:
    """Rows, dead letters, state and the follower's rows are those of these numbers."""
    good = [n for n in numbers if n % 10 != 5]
    _, rows = await output_rows(store, LAYOUT, NAMES)
    assert sorted([row["n"] async for row in rows]) == good
    _, rows = await output_rows(store, ProcessorLayout("Followed"), NAMES)
    assert sorted([row["n"] async for row in rows]) == good
    letters = await DeadLetters.opened(store, LAYOUT)
    found = [(letter["value"], letter["replayed"]) async for letter in letters.select(Selection())]
    expected = [(str(n), n == REPLAYED) for n in numbers if n % 10 == 5]
    assert sorted(set(found)) == sorted(set(expected) | {(str(REPLAYED), False)} & set(found))
    counts: Counter[int] = Counter()
    for partition in NAMES:
        counts.update({int(str(key)): n for key, n in (await read_state(store, LAYOUT, partition)).items("counts")})
    assert counts == Counter(n % 10 for n in good)


async def test_a_container_of_each_release_is_read_and_continued(place: Path) -> None:
    async with (
        open_store(str(place / CONTAINER), Settings()) as store,
        open_store(str(place / LOG), Settings()) as log,
    ):
        await check(store, range(ROUNDS * RECORDS))
        assert (await verify(store, LAYOUT, log)).damages == []
        assert (await read_group(store, LAYOUT)) is not None
        await append(place, ROUNDS * RECORDS)
        await process(place, "later")
        await check(store, range((ROUNDS + 1) * RECORDS))
        assert (await verify(store, LAYOUT, log)).damages == []


async def test_the_archive_has_an_object_of_each_kind_that_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that writes the archive of a release works, and the newest archive has all kinds it writes."""
    monkeypatch.setattr("tests.releases.FOLDER", tmp_path)
    await write(tmp_path / "new")
    made = archive(tmp_path / "new")

    def kinds(file: Path) -> set[str]:
        place = tmp_path / file.stem
        shutil.unpack_archive(file, place)
        names = (path.relative_to(place) for path in place.rglob("*") if path.is_file())
        return {"/".join(part.partition("=")[0] for part in name.parts[:-1]) + name.suffix for name in names}

    written = kinds(made)
    newest = max(FOLDER.glob("*.zip"), key=lambda file: tuple(map(int, file.stem.split("."))))
    assert kinds(newest) == written
    for folder in ("output", "checkpoints", "dead-letters", "state", "compacted", "boundaries", "replays"):
        assert any(f"{CONTAINER}/Totals/{folder}" in kind for kind in written), folder
