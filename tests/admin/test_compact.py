"""`compact`: the whole job, on a folder and on S3, with bad files, and killed at random."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from actorproc import errors
from actorproc.admin import compact
from actorproc.admin.audit import read_audit
from actorproc.output.compact_output import Compaction
from actorproc.retention.boundary import read_boundary
from actorproc.storage.listing import DataFile
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.output.test_compaction import rows
from tests.servers import S3Server
from tests.spark.committing import Fleet, Grown, delete_originals, until_past

LAYOUT = ProcessorLayout("numbers")


def pairs(files: Sequence[DataFile], target_size: int, apart: object = ()) -> list[list[DataFile]]:
    """Groups of two files each, for tests that need many groups."""
    return [list(files[at : at + 2]) for at in range(0, len(files) - 1, 2)]


async def test_small_files_become_one_and_the_audit_says_so(tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=30, p1=20)
    await fleet.commit(Grown, p0=20, p1=10)
    told: list[int] = []
    done = await compact(container=tmp_path, name="numbers", older_than=0, done=lambda group: told.append(group.files))
    assert (done.files_before, done.files_after, done.rows, sorted(told)) == (6, 2, 54, [2, 4])
    assert 0 < done.bytes_after < done.bytes_before
    async with open_store(str(tmp_path)) as store:
        (act,) = await read_audit(store, LAYOUT.audit)
        assert (act.what, act.effect) == ("compact", "files made of smaller ones: 2; replaced files deleted: 0")
        assert await rows(store) == fleet.expected()
        await delete_originals(store, "01")
        assert await rows(store) == fleet.expected()


async def test_run_again_it_only_rewrites_what_is_new(s3_server: S3Server) -> None:
    url = await s3_server.new_url()
    fleet = Fleet(url, s3_server.settings)
    await fleet.commit(p0=30, p1=30)
    await until_past(fleet)

    async def again(*, dry_run: bool = False) -> tuple[int, int]:
        done = await compact(container=url, name="numbers", older_than=0, settings=fleet.settings, dry_run=dry_run)
        return done.files_before, done.files_after

    assert await again(dry_run=True) == (4, 0)
    assert await again() == (4, 2)
    assert await again() == (0, 0)
    await fleet.commit(p0=30)
    await until_past(fleet)
    assert await again() == (4, 1)


async def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=30)
    with pytest.raises(errors.UsageError, match=r"no processor 'nmbers'.*there are: numbers"):
        await compact(container=tmp_path, name="nmbers")
    with pytest.raises(errors.SettingsError, match="target_size = 'large'"):
        await compact(container=tmp_path, name="numbers", target_size="large")
    with pytest.raises(errors.UsageError, match="keep = 60 s"):
        await compact(container=tmp_path, name="numbers", keep="1m")
    with pytest.raises(errors.UsageError, match="at_once = 0"):
        await compact(container=tmp_path, name="numbers", at_once=0)


async def test_bad_files_only_stop_the_compaction_of_files_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actorproc.output.compaction.grouped", pairs)
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=90, p1=90, p2=90)
    damaged, missing = LAYOUT.output_file("0", 2), LAYOUT.output_file("1", 4)
    (tmp_path / damaged).write_bytes(b"PAR1 nothing PAR1")
    (tmp_path / missing).unlink()
    leftover = tmp_path / LAYOUT.compacted_file("1", 6, "dead")  # which no range holds
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"")
    os.utime(leftover, (0, 0))

    found: list[Compaction] = []
    with pytest.raises(errors.SourceError, match="2 files keep others") as caught:
        await compact(container=tmp_path, name="numbers", older_than=0, began=found.append)
    assert damaged in str(caught.value)
    assert missing in str(caught.value)
    assert (found[0].files_after, found[0].swept, found[0].contested) == (1 + 2 + 4, 1, set())
    assert not leftover.exists()
    async with open_store(str(tmp_path), fleet.settings) as store:
        reached = [(await read_boundary(store, LAYOUT.boundary(partition))).originals for partition in "012"]
    assert reached == [2, 4, 8]
    with pytest.raises(errors.SourceError, match="2 files keep others"):
        await compact(container=tmp_path, name="numbers", older_than=0)


async def test_files_after_a_corrupt_compacted_file_are_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actorproc.output.compaction.grouped", pairs)
    fleet = Fleet(str(tmp_path))
    await fleet.commit(p0=90)
    assert (await compact(container=tmp_path, name="numbers", older_than=0)).files_after == 4
    await fleet.commit(p0=30)
    async with open_store(str(tmp_path), fleet.settings) as store:
        first = (await read_boundary(store, LAYOUT.boundary("0"))).ranges[0]
        damaged = LAYOUT.compacted_file("0", 0, first.put_id)
        (tmp_path / damaged).write_bytes(b"PAR1 nothing PAR1")
        with pytest.raises(errors.CorruptObject, match=damaged):
            await compact(container=tmp_path, name="numbers", older_than=0)
        boundary = await read_boundary(store, LAYOUT.boundary("0"))
    assert [(r.first, r.next) for r in boundary.ranges] == [(0, 2), (2, 4), (4, 8), (8, 10)]
