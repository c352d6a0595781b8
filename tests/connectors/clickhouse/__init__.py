"""Tests of the ClickHouse connector: the unmodified client, and the engine of ClickHouse behind an HTTP double."""
