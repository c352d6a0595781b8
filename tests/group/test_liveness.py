"""Which hosts are alive, as listings of heartbeats show it."""

from __future__ import annotations

import pytest

from actorproc.group.liveness import LivenessTracker
from actorproc.storage.backend import Entry, Listing
from actorproc.storage.names import ProcessorLayout

LAYOUT = ProcessorLayout("p")
B = ("b", "1")


class Observer:
    """A watch with its own clock (`time`) and a store that has another one, a million seconds ahead."""

    def __init__(self, expire: float = 60) -> None:
        self.watch = LivenessTracker(expire)
        self.time = 500.0
        self.beats: dict[tuple[str, str], tuple[str, float]] = {}

    @property
    def store_time(self) -> float:
        return self.time + 1e6

    def beat(self, who: tuple[str, str] = B, *, ago: float = 0) -> None:
        self.beats[who] = f"tag {self.time}", self.store_time - ago

    def look(self, *members: tuple[str, str], takes: float = 0.1) -> None:
        asked, entries = self.time, [
            Entry(LAYOUT.host(*who), tag, 100, modified) for who, (tag, modified) in sorted(self.beats.items())
        ]  # fmt: skip
        listing = Listing(entries, self.store_time)
        self.time += takes
        self.watch.observe(listing, members, asked=asked, answered=self.time)


def test_a_member_is_dead_after_the_expiration_without_a_renewal() -> None:
    observer = Observer()
    observer.beat()
    observer.look(B, takes=3)
    observer.time += 60
    observer.look(B)
    assert observer.watch.why_dead(B) is None, "60 s from the reply that showed it, 63 s from the request"
    observer.time += 0.1
    observer.look(B)
    assert observer.watch.why_dead(B) == "b has not renewed for 60 s"


def test_silence_ends_when_the_request_was_sent() -> None:
    observer = Observer()
    observer.beat()
    observer.look(B)
    observer.time += 10
    observer.look(B, takes=500)  # this host was stopped while the answer was on its way
    assert observer.watch.why_dead(B) is None
    assert observer.watch.silence(B) == pytest.approx(10)


def test_a_heartbeat_that_changed_starts_the_silence_anew() -> None:
    observer = Observer()
    for _ in range(10):
        observer.beat()
        observer.look(B)
        observer.time += 55
    assert observer.watch.why_dead(B) is None


def test_an_earlier_heartbeat_that_lands_again_is_a_change() -> None:
    observer = Observer()
    observer.beat()
    tag, _ = observer.beats[B]
    observer.look(B)
    observer.time += 26  # meanwhile: a later one, then the lost first try at this one
    observer.beats[B] = tag, observer.store_time
    observer.look(B)
    observer.time += 40
    observer.look(B)
    assert observer.watch.why_dead(B) is None


def test_at_the_first_look_the_stores_clock_shows_long_dead_hosts() -> None:
    for age, dead in ((119, False), (123, True)):
        observer = Observer()
        observer.beat(ago=age)
        observer.look(B)
        assert (observer.watch.why_dead(B) is not None) is dead


def test_a_store_clock_of_whole_seconds_expires_no_host_too_early() -> None:
    observer = Observer()
    observer.beat(ago=120.9)
    observer.look(B)
    assert observer.watch.why_dead(B) is None


def test_a_heartbeat_written_twice_in_a_second_is_a_change() -> None:
    observer = Observer()
    observer.beat()
    _, modified = observer.beats[B]
    observer.look(B)
    observer.time += 0.5
    observer.beats[B] = "another tag", modified
    observer.look(B)
    observer.time += 59.9
    observer.look(B)
    assert observer.watch.silence(B) < 60


def test_a_jump_of_the_stores_clock_kills_no_renewing_host() -> None:
    observer = Observer()
    observer.beat()
    observer.look(B)
    observer.time += 13
    observer.beat(ago=10_000)
    observer.look(B)
    assert observer.watch.why_dead(B) is None
    assert observer.watch.alive(B)


def test_a_heartbeat_that_a_listing_misses_counts_as_silent_no_more() -> None:
    observer = Observer()
    observer.beat()
    observer.look(B)
    beats, observer.beats = observer.beats, {}
    observer.time += 20
    observer.look(B)
    assert observer.watch.why_dead(B) is None
    observer.beats = beats
    observer.time += 41
    observer.look(B)
    assert observer.watch.why_dead(B) == "b has not renewed for 61 s", "the same tag again is no sign of life"


def test_a_member_without_any_heartbeat_is_dead_after_the_expiration() -> None:
    observer = Observer()
    observer.look(B)
    assert observer.watch.why_dead(B) is None
    observer.time += 61
    observer.look(B)
    assert observer.watch.why_dead(B) is not None


def test_a_member_without_a_heartbeat_is_silent_from_the_first_listing_on() -> None:
    observer = Observer()
    observer.look(B, takes=50)
    observer.time += 59
    observer.look(B)
    assert observer.watch.why_dead(B) is None


def test_of_members_that_no_listing_was_asked_about_nothing_is_known() -> None:
    assert LivenessTracker(60).why_dead(B) is None
    assert not LivenessTracker(60).alive(B)


def test_a_newcomer_is_written_in_only_while_its_heartbeat_is_fresh() -> None:
    for age, fresh in ((0, True), (30, True), (32, False)):
        observer = Observer()
        observer.beat(ago=age)
        observer.look()
        assert observer.watch.joining([]) == ({"b": "1"} if fresh else {})


def test_a_newcomer_that_fell_silent_is_not_written_in() -> None:
    observer = Observer()
    observer.beat(ago=-3_600)  # a folder on a server whose clock is an hour ahead
    observer.look()
    observer.time += 31
    observer.look()
    assert observer.watch.joining([]) == {}


def test_members_are_no_newcomers_and_of_two_incarnations_the_later_counts() -> None:
    observer = Observer()
    observer.beat(("b", "z"), ago=5)
    observer.beat(("b", "a"), ago=1)
    observer.beat(("c", "1"))
    observer.look()
    assert observer.watch.joining(["c"]) == {"b": "a"}


def test_heartbeats_of_long_silent_strangers_are_abandoned() -> None:
    observer = Observer()
    old, member, young = ("old", "1"), ("member", "1"), ("young", "1")
    observer.beat(old, ago=700)
    observer.beat(member, ago=700)
    observer.beat(young, ago=100)
    observer.look(member)
    assert observer.watch.orphaned([member]) == [], "seen once only"
    observer.time += 61
    observer.look(member)
    assert observer.watch.orphaned([member]) == [old]


def test_the_heartbeat_of_a_host_that_crashed_is_litter_in_time() -> None:
    observer = Observer()
    observer.beat()
    for _ in range(10):
        observer.look()
        observer.time += 59
        assert observer.watch.orphaned([]) == []
    observer.time += 20
    observer.look()
    assert observer.watch.orphaned([]) == [B]


def test_other_objects_in_the_folder_are_passed_over() -> None:
    watch = LivenessTracker(60)
    watch.observe(Listing([Entry(LAYOUT.hosts + "README", "t", 1, 0.0)], 0.0), [], asked=0, answered=0)
    assert watch.joining([]) == {}
    assert watch.orphaned([]) == []
