"""`Settings`: every setting of a processor with its default, limits and description."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from actorproc.config.loading import PREFIX, merge, read_config
from actorproc.config.store_options import store_options
from actorproc.config.units import LARGEST, LONGEST, seconds, size
from actorproc.config.validation import explain
from actorproc.errors import SettingsError

Seconds = Annotated[float, BeforeValidator(seconds), Field(gt=0, le=LONGEST, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, BeforeValidator(seconds), Field(ge=0, le=LONGEST, allow_inf_nan=False)]
Expiration = Annotated[float, BeforeValidator(seconds), Field(ge=3600, le=LONGEST, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(size), Field(gt=0, le=LARGEST)]
Count = Annotated[int, Field(gt=0, le=10**15)]  # larger ones would overflow 64 bits in calculations
Share = Annotated[float, Field(ge=0, le=1)]


def _json_object(value: object) -> object:
    """Parse text as JSON, so that an environment variable and `--set` can hold a table."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('must be JSON, such as {"security.protocol": "SASL_SSL"}') from None


ORDERED = (
    ("lease_acquire_interval", "lease_expiration_interval", "or dead hosts are noticed too late"),
    ("min_batch_records", "max_batch_records", "or no batch could have as many"),
    ("max_batch_bytes", "read_ahead_bytes", "or one batch exceeds the read-ahead of all partitions together"),
    ("retry_backoff", "retry_backoff_max", "which is the longest wait"),
    ("restart_backoff", "restart_backoff_max", "which is the longest wait"),
)
"""Pairs of settings of which the first must be at most the second, and why."""


_TABLES = ("source_options", "sinks")
"""Settings that are merged name by name."""


class Settings(BaseModel):
    """Settings of a processor, with one name as keyword, as `ACTORPROC_<NAME>` variable and in `actorproc.toml`.

    Times are in seconds, or text with a unit ('500ms'); sizes are in bytes, or text with a unit ('64MiB').
    `Settings(...)` knows keywords only; `Settings.load(...)` also reads the environment and the file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    # Group
    lease_acquire_interval: Seconds = Field(
        17, description="How often a host looks at the group, with a tenth of jitter."
    )
    lease_renew_interval: Seconds = Field(13, description="How often a host writes its heartbeat.")
    lease_expiration_interval: Seconds = Field(
        60,
        description="A host counts as dead when its heartbeat has not changed for this long. Must be more than twice "
        "`lease_renew_interval`. Each host publishes its own value.",
    )
    balance: Literal["count", "load"] = Field(
        "count",
        description="What hosts share evenly: the number of partitions, or with `load` the time that these take, "
        "measured over some minutes. Give all hosts the same value.",
    )
    rebalance_delay: Seconds = Field(
        5,
        description="Leases of live hosts move only after the membership has not changed for this long, so that a "
        "rolling restart causes one rebalance.",
    )
    max_handoff_time: SecondsOrZero = Field(
        30,
        description="How long the owner of a moving lease may finish its batch. Then the lease is revoked. Batches are "
        "sized to take at most half of it. 0: it gives the partition up at once, and the next owner processes again "
        "what is not committed.",
    )
    nudge_host: str | None = Field(
        None,
        description="Address at which other hosts and readers reach this host with a UDP datagram that makes them look "
        "at once. Detected in a cloud. For a folder it is 127.0.0.1; set it if several machines share the folder.",
    )
    partition_refresh_interval: Seconds = Field(300, description="How often the source is asked for new partitions.")

    # Reading
    poll_interval: Seconds = Field(
        1,
        description="How often an idle source is polled: a log once per host, an output once per partition. An output "
        "is polled less often the longer nothing comes. Writers that can be reached tell readers of news at once.",
    )
    lag_interval: Seconds = Field(
        30,
        description="How often a host asks the source for the end of each partition that it has not read to the end. "
        "Their lag is computed from it.",
    )
    source_options: Annotated[dict[str, str | int | float | bool], BeforeValidator(_json_object)] = Field(
        {},
        repr=False,
        description="Options of the source's client by name: librdkafka's properties for Kafka. A table "
        "`[source_options]` in the file, or JSON. File, environment and `--source-option` are merged name by name. The "
        "value `@PATH` stands for the content of a file: keep secrets there, or in the environment.",
    )
    on_out_of_range: Literal["fail", "earliest", "latest"] = Field(
        "fail",
        description="What a log, Kafka, Kinesis or Event Hubs does when records were removed before they were read: "
        "stop the partition and say how many (Kinesis does not count them), or go on at the earliest or latest record.",
    )
    max_read_time: Seconds = Field(
        300,
        description="A source whose `read()` yields nothing for this long, not even an empty chunk, is taken to hang: "
        "the partition is reported and restarted. A `read()` that said that it is at the end is begun anew.",
    )
    mirror_offsets: str | None = Field(
        None,
        description="A Kafka consumer group that shows the progress of the processor: committed positions are written "
        "to it every five seconds, for tools that watch groups. The group must have no members.",
    )
    max_unacknowledged: Count = Field(
        1_000,
        description="Of a queue: messages that may be delivered and not acknowledged, per partition. A commit names as "
        "many earlier messages, in some 20 bytes each. Half of them processed is a reason to commit.",
    )
    queue_end_wait: Seconds = Field(
        30,
        description="Of a queue, in a run until the end: it counts as empty if it delivers nothing for this long after "
        "its consumer was attached. Until then another consumer may have it.",
    )
    stream_idle_time: SecondsOrZero = Field(
        60,
        description="A partition that has had no new record for this long: its stream time follows the wall clock, "
        "this far behind, so that its timers fire. Longer than producers may pause or be late. 0: at once.",
    )
    max_timestamp_ahead: SecondsOrZero = Field(
        3600,
        description="A record whose timestamp is further ahead of the wall clock does not move stream time: one wrong "
        "timestamp must not fire all timers. Kafka brokers refuse such records by the same default.",
    )
    read_ahead_batches: Count = Field(2, description="Batches read ahead of the handler, per partition.")
    read_ahead_bytes: Size = Field(
        256 * 2**20,
        description="Bytes read ahead, over all partitions of a host, including files that are being decoded. Bounds "
        "memory whatever the backlog. Partitions that wait to retry a batch do not count.",
    )
    min_batch_records: Count = Field(
        1,
        description="Records for which a batch waits, at most `max_batch_wait`. For handlers whose work costs much per "
        "batch, such as a bulk insert. A batch is then never sized smaller, however slow the handler is.",
    )
    max_batch_wait: Seconds = Field(
        1, description="How long the first record of a batch waits for `min_batch_records`, at most."
    )
    max_batch_records: Count = Field(
        10_000, description="Most records in a batch. Fewer if the handler would take more than about five seconds."
    )
    max_batch_bytes: Size = Field(
        16 * 2**20,
        le=2**31 - 1,  # the limit of an Arrow column of bytes
        description="Most bytes in a batch: values, keys and headers. A larger record is a batch of its own. At most "
        "2 GiB - 1.",
    )

    # Decoding
    decode: str = Field(
        "json",
        description="Format of the records' values: `json`, `avro`, `protobuf`, `json-schema`, `csv`, `text`, `arrow`, "
        "or one of another package. For `RecordHandler[...]`, `DecodedRows`, `ctx.decode` and "
        "`ctx.decode_arrow`.",
    )
    decode_schema: str | None = Field(
        None,
        description="Schema of the values. `csv`: names and types as DDL. Without a schema registry: a file (`avro`, "
        "`json-schema`), or a generated class as `MODULE:MESSAGE` (`protobuf`). With one, `avro` only: "
        "`registry:SUBJECT` or `registry:SUBJECT:VERSION`, into which values of other versions are resolved.",
    )
    decode_key: str | None = Field(
        None, description="Format of the records' keys, for `ctx.decode_key`. As `decode`; without it, keys are bytes."
    )
    decode_key_schema: str | None = Field(None, description="Schema of the keys. As `decode_schema`.")
    schema_registry: str | None = Field(
        None,
        description="URL of a schema registry with Confluent's API. The values and keys of `avro`, `protobuf` and "
        "`json-schema` then begin with the id of their schema.",
    )
    schema_registry_options: Annotated[dict[str, str | int | float | bool], BeforeValidator(_json_object)] = Field(
        {},
        repr=False,
        description="Options of confluent-kafka's registry client by name, such as `basic.auth.user.info` and "
        "`ssl.ca.location`. A table `[schema_registry_options]` in the file, or JSON. `@PATH` takes a value from a "
        "file.",
    )
    max_value_rows: Count = Field(
        1_000_000,
        description="Most rows that a value may unpack to, or elements of arrays and maps. A few hundred bytes can say "
        "that they are millions of rows. A record beyond it becomes a dead letter.",
    )
    max_value_bytes: Size = Field(
        64 * 2**20,
        description="Most bytes that a value may unpack to in memory. Compressed columns unpack to a thousand times "
        "their size. A record beyond it becomes a dead letter.",
    )

    # Handling
    delivery: Literal["at-least-once", "at-most-once"] = Field(
        "at-least-once",
        description="Whether a batch is committed after or before the handler processes it. Output rows are exactly "
        "once, or at most once.",
    )
    max_attempts: Count = Field(3, description="Attempts at a failing batch. After them, its bad records are isolated.")
    retry_backoff: Seconds = Field(
        0.2,
        description="Wait after the first failed attempt. Doubles with each attempt. A random half of every backoff is "
        "jitter.",
    )
    retry_backoff_max: Seconds = Field(30, description="Longest wait between attempts.")
    dead_letter_limit: Share = Field(
        0.5, description="A partition stops if more than this share of its latest records are dead letters. 1: never."
    )
    dead_letter_window: Count = Field(
        1_000,
        description="Number of latest records of which `dead_letter_limit` is a share. A host that has seen fewer than "
        "100 counts as if it had seen 100.",
    )
    max_process_time: Seconds = Field(
        300,
        description="A handler without progress for this long is stuck: it is reported, cancelled and restarted. A "
        "plain `def` cannot be cancelled; it is restarted when its thread ends. `opened` has the same limit. Batches "
        "are sized to take at most a quarter of it.",
    )
    restart_backoff: Seconds = Field(
        0.5, description="Wait before a failed partition or Spark query restarts. Doubles each time, with jitter."
    )
    restart_backoff_max: Seconds = Field(60, description="Longest wait before a restart.")
    loop_block_warning: Seconds = Field(
        1, description="An event loop that is blocked for this long is logged with its stack."
    )
    handler_threads: Count = Field(
        16, description="Threads for plain `def process` handlers, per host. A stuck thread counts until it ends."
    )

    hook_queue: Count = Field(
        1_000, description="Events that wait for the application's hooks, per host. Newer ones are dropped and counted."
    )

    # Committing
    auto_commit: bool = Field(True, description="If false, only `await ctx.commit()` commits.")
    commit_interval: Seconds = Field(
        5,
        description="How often processed records are committed, with or without rows. A batch in progress is finished "
        "first, which may take as long. A commit costs one PUT per partition.",
    )
    idle_commit_interval: Seconds = Field(
        60, description="How often a position is committed that moved without a record, for example past aborted ones."
    )
    commit_rows: Count = Field(1_000_000, description="Rows after which a commit is due at once.")
    commit_bytes: Size = Field(64 * 2**20, description="Bytes of rows (as Arrow) after which a commit is due at once.")
    uncommitted_bytes: Size = Field(
        256 * 2**20,
        description="Bytes of rows waiting for a commit, over all partitions of a host. Beyond it, the partitions with "
        "most commit early.",
    )
    commit_dead_letter_bytes: Size = Field(
        2**20,
        description="Bytes of dead letters after which a commit is due at once. They are stored in the file's footer.",
    )

    state_bytes: Size = Field(
        512 * 2**20,
        description="Most bytes of keyed state, keys and values, that a partition may hold. They are kept in memory, "
        "with some 150 bytes for each key. A partition with more stops with an error.",
    )

    # Sinks
    sinks: Annotated[dict[str, str | dict[str, Any]], BeforeValidator(_json_object)] = Field(
        {},
        repr=False,
        description="Systems that get the committed rows, by name: a URL, or a table `[sinks.NAME]` with `url` and "
        "options. `@PATH` takes the value of an option from a file.",
    )

    # Retention
    reader_expiration: Expiration | None = Field(
        None,
        description="A registered processor or Spark query that has written nothing for this long has expired: "
        "`trim` keeps no data for it, and removes it. At least 1h. Without it, readers never expire.",
    )

    # HTTP
    http_token: str | None = Field(
        None,
        repr=False,
        description="Token for everything that the HTTP server offers, or `@FILE` that holds it. Needed to listen on "
        "other than a loopback address, and to replay or purge dead letters. At least 16 characters.",
    )
    http_read_token: str | None = Field(
        None, repr=False, description="Token, or `@FILE` that holds it, that allows reading only."
    )
    http_partition_metrics: bool = Field(
        False,
        description="Whether `/metrics` has series for each partition. They are many: some six for each partition.",
    )

    compact_interval: SecondsOrZero | None = Field(
        None,
        description="How often one host of the group merges small output files into large ones, as `compact` does. "
        "0: never. Default: each hour if a sink is a table, else never.",
    )
    compact_size: Size = Field(
        128 * 2**20,
        description="Size of the files that a host makes of small ones. It holds one in memory, and 150 MiB more.",
    )

    # History
    history_interval: SecondsOrZero = Field(
        300,
        description="How often a host notes lag, records, dead letters and trouble of its partitions in the container, "
        "for the dashboard's last day: one write of at most 3 KB for each partition. 0: never.",
    )
    app_version: Annotated[str, Field(max_length=100)] | None = Field(
        None, description="Version of your application, such as a Git commit. The history marks when it changes."
    )

    # Store
    store_timeout: Seconds = Field(
        15,
        description="Deadline of one request, plus a second for each MiB transferred. A write that has begun in a "
        "folder is waited for. Also the deadline for a source to list its partitions.",
    )
    store_patience: Seconds = Field(60, description="How long a request is retried before it fails.")
    store_concurrency: Count = Field(64, description="Concurrent requests, per host and store.")
    store_user_agent: Annotated[str, Field(pattern=r"^[\x20-\x7e]{1,200}$")] | None = Field(
        None,
        description="Added to the header `User-Agent` of each request to a store in a cloud, so that the provider's "
        "logs tell who sent it. Printable ASCII.",
    )
    _store_options: dict[str, Any] = PrivateAttr({})

    @property
    def store_options(self) -> Mapping[str, Any]:
        """The settings that stores declare, such as `s3_region`, as they were given. They may be secret."""
        return self._store_options

    def with_store_options(self, options: Mapping[str, Any]) -> Self:
        """The same settings with other options of stores."""
        changed = self.model_copy()
        changed._store_options = dict(options)
        return changed

    @model_validator(mode="wrap")
    @classmethod
    def _split(cls, given: Any, handler: Callable[[Any], Self]) -> Self:
        """Keep the options of stores apart. Each store checks its own when it is opened."""
        if not isinstance(given, dict) or not (others := given.keys() - cls.model_fields.keys()):
            return handler(given)
        known = store_options(others)
        settings = handler({name: value for name, value in given.items() if name not in others or name not in known})
        settings._store_options = {name: given[name] for name in others & known.keys()}
        return settings

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
                unit = large.rpartition("_")[2]  # bytes or records
                first, second = (f"{v:.9g} s" if isinstance(v, float) else f"{v} {unit}" for v in (less, more))
                raise ValueError(f"{small} ({first}) must be at most {large} ({second}), {why}")
        if self.delivery == "at-most-once" and not self.auto_commit:
            raise ValueError(
                "auto_commit = false cannot go with delivery = 'at-most-once', which commits before the handler"
            )
        return self

    @classmethod
    def load(cls, config: str | Path | None = None, /, **keywords: Any) -> Settings:
        """Settings from keywords, the environment and a file, in this order of precedence.

        Args:
            config: a TOML file. Default: `actorproc.toml` in the working directory, if it exists. Its table `[options]`
                belongs to the handler and is ignored here.
            keywords: settings by name; None counts as not given.

        Raises:
            SettingsError: names each wrong setting, its value and what is allowed.
        """
        file = {name: value for name, value in read_config(config).items() if name != "options"}
        given = {name: value for name, value in keywords.items() if value is not None}
        variables = [name[len(PREFIX) :] for name in os.environ if name.upper().startswith(PREFIX)]
        fields = [*store_options(variables), *cls.model_fields]
        values, origins = merge(fields, PREFIX, config=config, file=file, keywords=given, tables=_TABLES)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError(explain(error, cls, origins)) from None
