"""Every setting of a processor: name, default, reason, limits; read from keywords, `ACTORPROC_*` and `actorproc.toml`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from actorproc.config.environment import OF_COMMANDS, PREFIX, check_environment, did_you_mean, read_config
from actorproc.config.redaction import kind_of, may_show
from actorproc.errors import SettingsError

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_NUMBER_UNIT = re.compile(r"\s*([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def seconds(value: object) -> object:
    """A duration as seconds: a number, or text with a unit ('500ms', '13s', '2m', '1h', '7d')."""
    if not isinstance(value, str):
        return value
    return _amount(value, _SECONDS, "write seconds, or a number with ms, s, m, h or d, such as '500ms'")


def size(value: object) -> object:
    """A size as bytes: a number, or text with a unit ('64MiB', '10kB')."""
    if not isinstance(value, str):
        return value
    return int(_amount(value, _BYTES, "write bytes, or a number with kB, MB, GB, KiB, MiB or GiB, such as '64MiB'"))


def _amount(text: str, units: Mapping[str, float], wanted: str) -> float:
    match = _NUMBER_UNIT.fullmatch(text)
    if not match or match[2].lower() not in units:
        raise ValueError(wanted)
    amount = float(match[1]) * units[match[2].lower()]
    if math.isinf(amount):
        raise ValueError("it is too large")
    return amount


def duration(name: str, given: float | str, least: float = 0.0) -> float:
    """The seconds that argument `name` gives. Raises SettingsError: it is none, or less than `least`."""
    return _checked(name, given, seconds, least, "s")


def count_of_bytes(name: str, given: int | str, least: int = 1) -> int:
    """The bytes that argument `name` gives. Raises SettingsError: it is no size, or less than `least`."""
    return int(_checked(name, given, size, least, "bytes"))


def _checked(name: str, given: object, parse: Callable[[object], object], least: float, unit: str) -> float:
    try:
        found = parse(given)
    except ValueError as error:
        raise SettingsError(f"{name} = {given!r}: {error}") from None
    if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found < math.inf:
        raise SettingsError(f"{name} = {given!r}: at least {least:g} {unit}")
    return found


def no_bool(value: object) -> object:
    """`true` would pass for 1."""
    if isinstance(value, bool):
        raise ValueError("a number, not true or false")  # noqa: TRY004  # which pydantic would let through
    return value


Number = BeforeValidator(no_bool)
Seconds = Annotated[float, BeforeValidator(seconds), Number, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(size), Number, Field(gt=0)]
Count = Annotated[
    int, Number, Field(gt=0, le=10**15)
]  # more is a slip of the hand, and beyond what is reckoned with in 64 bits
Share = Annotated[float, Number, Field(ge=0, le=1)]

ORDERED = (
    ("lease_acquire_interval", "lease_expiration_interval", "or the dead are noticed later than that"),
    ("max_batch_bytes", "read_ahead_bytes", "or one batch is more than all partitions together may read ahead"),
    ("retry_backoff", "retry_backoff_max", "which is the longest wait"),
    ("restart_backoff", "restart_backoff_max", "which is the longest wait"),
)
"""Pairs of settings of which the first must be at most the second, and why."""

_OPTIONS_ALONE = ("start", "workers", "until_end", "config")
"""Options of the command line that have no variable, and are no settings."""

_NO_TABLE = (
    "there is no such table: settings stand at the top of the file, and only a handler's options in one, [options]"
)
_AN_OPTION = ". (An option of the handler is given with --option NAME=VALUE, or below [options] in the file)"
_NO_BOOL = frozenset({"bool_type", "bool_parsing"})
"""Errors of pydantic's that say: this is neither true nor false."""

_file: ContextVar[dict[str, Any] | None] = ContextVar("_file", default=None)  # what `load` read, for pydantic to find


class Settings(BaseSettings):
    """One name for each setting, in the keyword, in `ACTORPROC_<NAME>` and in `actorproc.toml`.

    Times are in seconds, or text with a unit ('500ms'); sizes in bytes, or text with a unit ('64MiB').
    A keyword beats the environment, the environment beats the file.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=True)

    # Group
    lease_acquire_interval: Seconds = Field(
        17, description="How often a host looks at the group, give or take a tenth."
    )
    lease_renew_interval: Seconds = Field(13, description="How often a host writes its heartbeat.")
    lease_expiration_interval: Seconds = Field(
        60,
        description="A host is dead once its heartbeat has not changed for so long (each host's own is told to the others); more "
        "than twice the renew interval.",
    )
    rebalance_delay: Seconds = Field(
        5,
        description="Live leases move only after the membership has been quiet for so long: a rolling restart settles first.",
    )
    max_handoff_time: Seconds = Field(
        30,
        description="How long an owner may finish its batch before a lease that should move is taken from it. Batches are made to take half of it at most.",
    )
    nudge_host: str | None = Field(
        None,
        description="Address under which other hosts can send this one a 'look now' datagram; found by itself on S3. With a folder it is "
        "127.0.0.1: set it where hosts on several machines share one, or what moves between these waits for the next look.",
    )
    partition_refresh_interval: Seconds = Field(300, description="How often the source is asked for new partitions.")

    # Reading
    poll_interval: Seconds = Field(
        1,
        description="How often an idle source is asked for news: the built-in log once per host, an output once per partition, and more seldom the longer nothing comes.",
    )
    read_ahead_batches: Count = Field(2, description="Batches read before the handler asks for them, per partition.")
    read_ahead_bytes: Size = Field(
        256 * 2**20,
        description="Bytes read ahead over all partitions of a host, with the files that are being decoded: what bounds memory whatever the backlog. Partitions that wait to try a batch again do not count: the others must not wait for them.",
    )
    max_batch_records: Count = Field(
        10_000,
        description="Most records in a batch. Less where the handler would take more than some five seconds for so many.",
    )
    max_batch_bytes: Size = Field(
        16 * 2**20,
        le=2**31 - 1,  # as an Arrow column of bytes holds
        description="Most bytes in a batch: values, keys and headers; a larger record comes alone. At most 2 GiB - 1.",
    )

    # Handling
    delivery: Literal["at-least-once", "at-most-once"] = Field(
        "at-least-once",
        description="Whether a batch is committed after or before the handler sees it. Rows: exactly once, or at most once.",
    )
    max_attempts: Count = Field(3, description="How often a failing batch is tried before its bad records are sought.")
    retry_backoff: Seconds = Field(
        0.2,
        description="Wait after the first failed attempt; doubled after each further one. Of this and the like, half to all is waited, by chance.",
    )
    retry_backoff_max: Seconds = Field(30, description="Longest wait between attempts.")
    dead_letter_limit: Share = Field(
        0.5,
        description="Share of dead letters in the latest records beyond which the partition stops; 1: it never does.",
    )
    dead_letter_window: Count = Field(
        1_000,
        description="Over how many records in a row the share is taken; of at least 100 while the host process has seen fewer.",
    )
    max_process_time: Seconds = Field(
        300,
        description="A handler that makes no progress for so long is reported as stuck, cancelled and restarted; a plain `def`, which cannot be cancelled, once its thread has ended. Its `opened` may take as long. Batches are made to take a quarter of it at most.",
    )
    restart_backoff: Seconds = Field(
        0.5,
        description="Wait before a failed partition, or Spark query, is started again; doubled each time. Half to all of it is waited, by chance.",
    )
    restart_backoff_max: Seconds = Field(60, description="Longest wait before one that failed is started again.")
    restart_intensity: Count = Field(
        10,
        description="After so many failures of a partition within `restart_period` it waits the longest at once: one that lives a while each time would not get there.",
    )
    restart_period: Seconds = Field(600, description="How long a failure counts towards `restart_intensity`.")
    loop_block_warning: Seconds = Field(1, description="An event loop blocked for so long is logged with its stack.")
    handler_threads: Count = Field(
        16, description="Threads for plain `def process` handlers, per host; one that is stuck counts until it ends."
    )

    # Committing
    auto_commit: bool = Field(True, description="Off: only `await ctx.commit()` commits.")
    commit_interval: Seconds = Field(
        5,
        description="Rows are committed so often, between batches: one in hand, which may take as long, is finished first.",
    )
    idle_commit_interval: Seconds = Field(60, description="A position that moved without rows is committed so often.")
    commit_rows: Count = Field(1_000_000, description="Rows after which a commit is due at once.")
    commit_bytes: Size = Field(64 * 2**20, description="Bytes of rows (as Arrow) after which a commit is due at once.")
    uncommitted_bytes: Size = Field(
        256 * 2**20,
        description="Bytes of rows that wait for a commit over all partitions of a host; beyond it those with most commit.",
    )
    commit_dead_letter_bytes: Size = Field(
        2**20, description="Bytes of dead letters after which a commit is due at once: they ride in the file's footer."
    )

    # Store
    store_timeout: Seconds = Field(
        15,
        description="Deadline of one request; a second more for each MiB that it sends, or is known to fetch. In a folder a write "
        "that has begun is waited for, whatever it takes. A source has as long to say its partitions.",
    )
    store_patience: Seconds = Field(60, description="How long a request is tried again before it counts as failed.")
    store_concurrency: Count = Field(64, description="Requests under way at once, per host and store.")
    s3_endpoint: str | None = Field(None, description="URL of an S3 server other than AWS, such as a MinIO.")
    s3_region: str | None = Field(None, description="Region; else what the AWS profile says, else us-east-1.")
    s3_access_key: str | None = Field(None, description="Else what the usual AWS chain finds.")
    s3_secret_key: str | None = Field(None, description="Belongs to `s3_access_key`.", repr=False)
    s3_path_style: bool | None = Field(
        None, description="bucket in the path, as MinIO wants; default: with an own endpoint."
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        renew, expire = self.lease_renew_interval, self.lease_expiration_interval
        if expire <= 2 * renew:
            raise ValueError(
                f"lease_expiration_interval ({expire:g} s) must be more than twice lease_renew_interval ({renew:g} s), "
                "or one lost heartbeat would cost a live host its leases"
            )
        for small, large, why in ORDERED:
            less, more = getattr(self, small), getattr(self, large)
            if less > more:
                first, second = (f"{v:.9g} s" if isinstance(v, float) else f"{v} bytes" for v in (less, more))
                raise ValueError(f"{small} ({first}) must be at most {large} ({second}), {why}")
        if self.delivery == "at-most-once" and not self.auto_commit:
            raise ValueError(
                "auto_commit = false cannot go with delivery = 'at-most-once', which commits before the handler"
            )
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError("s3_access_key and s3_secret_key come together or not at all")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        if _file.get() is None:
            return (init_settings,)
        return init_settings, env_settings, _TomlFile(settings_cls)

    @classmethod
    def load(cls, config: str | Path | None = None, **keywords: Any) -> Settings:
        """Settings from keywords, environment and a file.

        Args:
            config: a TOML file; without it `actorproc.toml` in the working directory, if there is one. Its table
                `[options]` belongs to the handler and is passed over here.
            keywords: settings by name; None counts as not given.

        Raises:
            SettingsError: names each setting that is wrong, its value and what is allowed.
        """
        return cls.load_named(config, keywords)

    @classmethod
    def load_named(cls, config: str | Path | None, keywords: Mapping[str, Any]) -> Settings:
        """As `load`, of names that others gave: one may be any text, also that of an argument here."""
        given = {name: value for name, value in keywords.items() if value is not None}
        check_environment(cls.model_fields)
        if private := [name for name in given if name.startswith("_")]:  # pydantic has arguments of such names
            raise SettingsError("\n".join(f"{name}: there is no such setting" for name in private))
        found = read_config(config)
        token = _file.set(found)
        try:
            return cls(**given)
        except ValidationError as error:
            where = dict.fromkeys(found, f"{config or 'actorproc.toml'}: ")
            where |= {
                variable[len(PREFIX) :].lower(): f"{variable} in the environment: "
                for variable in os.environ
                if variable.upper().startswith(PREFIX)  # as pydantic takes them
            }
            raise SettingsError(explain(error, cls, where=where | dict.fromkeys(given, ""))) from None
        finally:
            _file.reset(token)


def explain(
    error: ValidationError,
    model: type[BaseModel],
    give: str = "",
    where: Mapping[str, str] | None = None,
    hints: Mapping[tuple[int | str, ...], str] | None = None,
) -> str:
    """What pydantic found, a line each: the field, the value, what is allowed. Never a value that may be a secret.

    Args:
        give: told of one that is missing: how to give it; `{0}` is its name.
        where: what precedes one that is wrong, by its name: where it stands.
        hints: what follows one that is wrong, by its place in the model: how it is written.
    """
    lines = []
    for item in error.errors():
        name = ".".join(map(str, item["loc"]))
        message = item["msg"].removeprefix("Value error, ")
        place = (where or {}).get(str(item["loc"][0]), "") if item["loc"] else ""
        message += (hints or {}).get(item["loc"], "")
        if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:  # deeper, it is in an option
            if isinstance(item["input"], dict):
                lines.append(f"{place}[{name}]: {_NO_TABLE}")
                continue
            if name in (*OF_COMMANDS, *_OPTIONS_ALONE):
                variable = f", or {PREFIX}{name.upper()}" if name in OF_COMMANDS else ""
                lines.append(f"{place}{name} is no setting; give --{name.replace('_', '-')}{variable}")
                continue
            message = f"there is no such setting{did_you_mean(name, Settings.model_fields) or _AN_OPTION}"
            if name == "options":
                message = "it is a table: a line [options], and below it name = value for each option of the handler; "
                message += "or --option NAME=VALUE on the command line"
        if item["type"] in _NO_BOOL:
            message = "write true or false"
        if item["type"] == "missing":  # its input is all that was given
            lines.append(f"{name}: is missing{give.format(name) if len(item['loc']) == 1 else ''}")
        elif name and may_show(model, item["loc"], item["type"], item["input"]):
            lines.append(f"{place}{name} = {item['input']!r}: {message}")
        else:
            kind = "" if item["type"] == "extra_forbidden" else kind_of(item["input"])
            lines.append(f"{place}{name}{kind and f' is {kind}'}: {message}" if name else message)
    return "\n".join(lines)


class _TomlFile(PydanticBaseSettingsSource):
    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # pydantic asks for it; __call__ answers for all fields

    def __call__(self) -> dict[str, Any]:
        found = _file.get() or {}
        return {name: value for name, value in found.items() if name != "options" or not isinstance(value, dict)}
