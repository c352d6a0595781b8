"""Lists, finds, replays and purges the dead letters of a processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Self

import anyio

from actorproc.admin.audit import Act, operator, record
from actorproc.admin.replay import Replay
from actorproc.admin.replay_state import replayed_sequences
from actorproc.admin.replay_target import opened_target, takes_letters
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.output.checkpoint import read_checkpoint
from actorproc.output.letter import letter_files, purge, read_letters
from actorproc.output.source_identity import read_source
from actorproc.sources.log import LogSource
from actorproc.storage.document import whole_number
from actorproc.storage.names import ProcessorLayout, natural, number_of, partition_of
from actorproc.storage.store import Store
from actorproc.stores import OUTPUT_SCHEME

_AUDITED_IDS = 20
"""Ids of letters that the audit names; of more it has the number."""

Letter = dict[str, Any]
"""A dead letter as `dead-letters list --json` prints it."""


class LetterId(NamedTuple):
    """Names one dead letter of a processor; written `PARTITION:SEQUENCE`."""

    partition: str
    sequence: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises UsageError if the text is not an id."""
        partition, colon, digits = text.rpartition(":")
        sequence = whole_number(digits)
        if not colon or sequence is None:
            raise UsageError(f"{text!r:.100} names no record; write PARTITION:SEQUENCE, such as 3:1042")
        return cls(partition, sequence)

    def __str__(self) -> str:
        return f"{self.partition}:{self.sequence}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters a command is about; all by default."""

    ids: frozenset[LetterId] = frozenset()
    partition: str | None = None
    kind: str | None = None
    """Type of the error, such as `KeyError`."""
    replayed: bool | None = None
    before: datetime | None = None
    """Only letters older than this."""

    def described(self) -> dict[str, str]:
        """The selection, for the audit."""
        names = sorted(str(name) for name in self.ids)
        named = ", ".join(names[:_AUDITED_IDS]) + (
            f" and {len(names) - _AUDITED_IDS} more" * (len(names) > _AUDITED_IDS)
        )
        facts = {
            "letters": named or None,
            "partition": self.partition,
            "kind": self.kind,
            "replayed": {True: "yes", False: "no", None: None}[self.replayed],
            "before": self.before and self.before.isoformat(),
        }
        return {name: fact for name, fact in facts.items() if fact}

    def __contains__(self, letter: Letter) -> bool:
        return self.kind in (None, letter["kind"]) and self.is_candidate(letter)

    def is_candidate(self, letter: Letter) -> bool:
        """Whether the letter matches in everything but its kind."""
        return (
            self.partition in (None, letter["partition"])
            and (not self.ids or (letter["partition"], letter["sequence"]) in self.ids)
            and self.replayed in (None, letter["replayed"])
            and (self.before is None or datetime.fromisoformat(letter["time"]) < self.before)
        )


@dataclass(slots=True)
class Purge:
    """The files that a purge may delete: only whole ones, each of which holds the letters of one commit."""

    selection: Selection = Selection()
    files: dict[str, int] = field(default_factory=dict)
    """Letters by key of each file that may go."""
    held: int = 0
    """Selected letters that stay, because they share a file with `beside` letters that are not selected."""
    beside: int = 0

    @property
    def letters(self) -> int:
        return sum(self.files.values())


class Replayed(NamedTuple):
    """Letters that a replay appended to the stream `log`, and letters that were there before.

    `also_read_by`: other readers of it, which get these records again. `refused`: letters that the stream does not
    take, by id, with the reasons.
    """

    log: str
    appended: int
    before: int
    also_read_by: list[str]
    refused: dict[str, str]


class DeadLetters:
    """The dead letters of one processor. Replays and purges are recorded in the audit, as acts of `who`."""

    def __init__(self, store: Store, layout: ProcessorLayout, replays: Collection[str], who: str) -> None:
        self._store = store
        self._who = who
        self._layout = layout
        self._replays = replays  # keys of those that have begun
        self.kinds: Counter[str] = Counter()
        """Kinds of the letters that were read and matched in everything but their kind."""
        self.appended = 0
        """Letters that the last `replay` appended, also if it raised an error."""

    @classmethod
    async def opened(cls, store: Store, layout: ProcessorLayout, who: str | None = None) -> Self:
        """With the replays that have begun up to now. `who`: the user of this process, unless it is given."""
        return cls(
            store, layout, {entry.key for entry in (await store.list(layout.replays)).entries}, who or operator()
        )

    @property
    def processor(self) -> str:
        return self._layout.processor

    @property
    def has_replays(self) -> bool:
        """Whether any letter was ever replayed."""
        return bool(self._replays)

    async def select(self, selection: Selection) -> AsyncGenerator[Letter, None]:
        """The selected letters, by partition and sequence."""
        for key in await self._files(selection.partition):
            for letter in await self._read(key):
                if selection.is_candidate(letter):
                    self.kinds[letter["kind"]] += 1
                    if letter in selection:
                        yield letter

    async def find(self, letter: LetterId) -> Letter:
        """One letter.

        Raises:
            UsageError: it does not exist.
        """
        key = await self._file_of(letter)
        return next(found for found in await self._read(key) if found["sequence"] == letter.sequence)

    async def plan_purge(self, selection: Selection) -> Purge:
        """Which files a purge may delete. Changes nothing."""
        planned = Purge(selection)
        for key in await self._chosen_files(selection):
            letters = await self._read(key)
            selected = sum(letter in selection for letter in letters)
            if 0 < selected == len(letters):
                planned.files[key] = selected
            elif selected:
                planned.held += selected
                planned.beside += len(letters) - selected
        return planned

    async def purge(self, planned: Purge) -> int:
        """Delete the files, except those that no checkpoint has passed yet. Returns the number of letters deleted."""
        purged = 0
        for key, count in planned.files.items():
            checkpoint = await read_checkpoint(self._store, self._layout, partition_of(key))
            if checkpoint is not None and await purge(self._store, key, below=checkpoint.number):
                purged += count
        if purged:
            await self._record("purge", planned.selection, f"deleted dead letters: {purged:,}")
        return purged

    async def replay(
        self,
        selection: Selection,
        settings: Settings,
        source: str | None = None,
        *,
        into: str | None = None,
        value: bytes | None = None,
        progress: Callable[[int, int], object] = lambda done, files: None,
    ) -> Replayed:
        """Append the selected letters to their stream again, each once if it has transactions.

        A letter that the stream refuses does not keep the others back.

        Args:
            source: URL of the stream, if it is not where the processor read it.
            into: URL of a built-in log that receives them instead.
            value: the corrected value of the one letter that `selection` names.
            progress: called with the files of dead letters that are done, and the number of all.

        Raises:
            UsageError: a letter does not exist, the processor's stream takes no records, or a value is given
                for several letters.
        """
        if value is not None and len(selection.ids) != 1:
            raise UsageError("a corrected value is for one letter: name just this one, by its id")
        url, is_source = into or source or await self._recorded_source(settings), into is None
        target = opened_target(url, settings, is_source=is_source)
        self.appended = before = 0
        try:
            async with Replay.opened(self._store, self._layout.processor, target, is_source=is_source) as replaying:
                readers = await replaying.target.readers()
                files = await self._chosen_files(selection)
                for number, key in enumerate(files):
                    progress(number, len(files))
                    done = await replaying.file(key, lambda letter: self._is_wanted(letter, selection), value=value)
                    if done is not None:
                        self.appended += done[0]
                        before += done[1]
        finally:  # letters were appended although a later file failed, or the user stopped it
            if self.appended:
                effect = f"dead letters appended to {url}: {self.appended:,}"
                with anyio.CancelScope(shield=True):
                    await self._record("replay", selection, effect + ", with a corrected value" * (value is not None))
        others = [name for name in readers if name != self._layout.processor]
        refused = {str(LetterId(*letter)): reason for letter, reason in replaying.refused.items()}
        return Replayed(url, self.appended, before, others, refused)

    async def _record(self, what: str, selection: Selection, effect: str) -> None:
        act = Act(time=self._store.clock.wall(), who=self._who, what=what, to=selection.described(), effect=effect)
        await record(self._store, self._layout, act)

    def _is_wanted(self, letter: Any, selection: Selection) -> bool:
        described = _described(letter, replayed=False)
        self.kinds[described["kind"]] += 1
        return described in selection

    async def _recorded_source(self, settings: Settings) -> str:
        """URL of the stream that the processor reads.

        Raises:
            UsageError: it reads something else, or that is not recorded.
        """
        name = self._layout.processor
        recorded = await read_source(self._store, self._layout)
        if recorded is None:
            raise UsageError(f"{self._store.url} does not say what {name} reads: give the stream with --source")
        url = recorded.name
        if recorded.kind != LogSource.__name__ and not takes_letters(url, settings):
            refuse_source(f"{name} reads {url}", url, own=True)
        return url

    async def _files(self, partition: str | None) -> list[str]:
        keys = await letter_files(self._store, self._layout, partition)
        return sorted(keys, key=lambda key: (natural(partition_of(key)), key))

    async def _chosen_files(self, selection: Selection) -> list[str]:
        """Files with selected letters: those of the ids, or all of the partition."""
        if not selection.ids:
            return await self._files(selection.partition)
        return list(dict.fromkeys([await self._file_of(letter) for letter in sorted(selection.ids)]))

    async def _file_of(self, letter: LetterId) -> str:
        """Key of the file with this letter.

        By bisection, because sequences grow from file to file; one by one for letters of `on_wake`, which are of
        records that came long before, and after a reset, which may repeat a record: then the newest file counts.

        Raises:
            UsageError: no file has it.
        """
        keys = await letter_files(self._store, self._layout, letter.partition)
        checkpoint = await read_checkpoint(self._store, self._layout, letter.partition)
        low, high = 0, 0 if checkpoint is not None and checkpoint.totals.resets else len(keys)
        while low < high:
            middle = (low + high) // 2
            sequences = [found["sequence"] for found in await read_letters(self._store, keys[middle])]
            if letter.sequence in sequences:
                return keys[middle]
            if sequences and sequences[-1] > letter.sequence:
                high = middle
            else:
                low = middle + 1
        for key in reversed(keys):
            if any(found["sequence"] == letter.sequence for found in await read_letters(self._store, key)):
                return key
        raise UsageError(f"no dead letter {letter} (`actorproc dead-letters list` shows all)")

    async def _read(self, key: str) -> list[Letter]:
        letters = await read_letters(self._store, key)
        begun = self._layout.replay(partition_of(key), number_of(key)) in self._replays
        done = await replayed_sequences(self._store, self._layout, key, letters) if begun else set()
        return [_described(letter, replayed=letter["sequence"] in done) for letter in letters]


def _described(letter: Letter, *, replayed: bool) -> Letter:
    """The stored letter with its id, its kind, and whether it was replayed."""
    name = str(LetterId(letter["partition"], letter["sequence"]))
    return {"id": name, "kind": letter["error"]["type"], **letter, "replayed": replayed}


def refuse_source(subject: str, url: str, *, own: bool) -> None:
    """Raise UsageError if dead letters cannot be appended to this source.

    Args:
        own: whether it is a source of the user's own, unless its URL says otherwise.
    """
    if url.startswith(OUTPUT_SCHEME):
        source = "a processor's output, which only that processor writes"
    elif own:
        source = "a source that is only read"
    else:
        return
    raise UsageError(
        f"{subject}: dead letters are appended to a log, a topic, a hub, a stream of Kinesis or a queue, and this is "
        f"{source}. Replay them into a log of their own (`dead-letters replay --into LOG`), and process that one"
    )
