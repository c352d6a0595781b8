"""Reports in heartbeats: fields of other versions are read, and each field keeps its place."""

from __future__ import annotations

import msgspec

from actorproc.counts import Counts
from actorproc.group.reports import PartitionReport, TimesReport
from actorproc.host.reporting import report_of
from actorproc.partition.statistics import PartitionStatistics

# Written before `Counts`: the four numbers after the lags counted since the actor's start.
OLDER = b'[3,"running",100,"it had no owner",41,7,1.5,40,30,2,1,200,"handle",210,[1.0,2.0,3.0],null,null,null,null'


def test_a_report_of_an_older_release_is_read() -> None:
    report = msgspec.json.decode(OLDER + b",[50,40,3,2]]", type=PartitionReport)
    assert report.counts == Counts(50, 40, 3, 2)
    assert (report.sequence, report.lag, report.lag_seconds, report.last_commit) == (41, 7, 1.5, 200)
    assert (report.activity, report.activity_since, report.times) == ("handle", 210, TimesReport(1.0, 2.0, 3.0))
    assert msgspec.json.decode(OLDER + b"]", type=PartitionReport).counts is None


def test_older_releases_find_each_field_of_a_report_in_its_place() -> None:
    totals = Counts(50, 40, 3, 2, resets=1)
    found = PartitionStatistics("0", 3, counts=Counts(40, 30, 2, 1), totals=totals, lag=7, activity_since=210.9)
    stored = msgspec.json.decode(msgspec.json.encode(report_of(found)))
    assert (stored[0], stored[5], stored[13]) == (3, 7, 210)
    assert stored[19] == [50, 40, 3, 2, 1]


def test_a_report_of_a_later_release_with_more_counts_is_read() -> None:
    report = msgspec.json.decode(OLDER + b",[50,40,3,2,1,9],[],null,true]", type=PartitionReport)
    assert report.counts == Counts(50, 40, 3, 2, 1)
