"""Settings of a bucket that cost money, delete what is needed or refuse writes, for `actorproc doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_REWRITES = "each host rewrites its heartbeat five times a minute"
_SLOW = {"ARCHIVE", "COLDLINE", "NEARLINE"}
_DAY = 86400

FIELDS = "versioning,lifecycle,retentionPolicy,softDeletePolicy,defaultEventBasedHold"


def bucket_warnings(bucket: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """A line for each.

    Args:
        bucket: its metadata as JSON.
        prefix: of our keys in it.
    """
    rules = [rule for rule in bucket.get("lifecycle", {}).get("rule", []) if _concerns(rule, prefix)]
    for rule in rules:
        yield from _of_rule(rule)
    if bucket.get("versioning", {}).get("enabled") and not any(_expires_old_versions(rule) for rule in rules):
        yield (
            f"the bucket keeps all versions: {_REWRITES}, and deleted files stay. Add a lifecycle rule that deletes "
            "noncurrent versions after some days, or use a bucket without versions"
        )
    kept = float(bucket.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    if kept:
        yield (
            f"the bucket keeps what is deleted or overwritten for {kept / _DAY:g} days, and bills it: {_REWRITES}. "
            "Turn it off: gcloud storage buckets update gs://BUCKET --clear-soft-delete"
        )
    if bucket.get("retentionPolicy"):
        yield f"the bucket has a retention policy: {_REWRITES}, and would be refused. Use a bucket without"
    if bucket.get("defaultEventBasedHold"):
        yield f"the bucket holds each new object: {_REWRITES}, and would be refused. Switch the default hold off"


def _of_rule(rule: Mapping[str, Any]) -> Iterator[str]:
    action, condition = rule.get("action", {}), rule.get("condition", {})
    if action.get("type") == "Delete" and not _is_of_old_versions(condition):
        yield (
            "a lifecycle rule deletes objects by age: commits, checkpoints and the log's files are needed however old "
            "they are. Limit it to other prefixes; `actorproc trim` deletes what nobody needs"
        )
    if action.get("type") == "SetStorageClass" and action.get("storageClass") in _SLOW:
        yield f"a lifecycle rule moves objects to {action['storageClass']}, from which each read is billed by size"


def _expires_old_versions(rule: Mapping[str, Any]) -> bool:
    return rule.get("action", {}).get("type") == "Delete" and _is_of_old_versions(rule.get("condition", {}))


def _is_of_old_versions(condition: Mapping[str, Any]) -> bool:
    return condition.get("isLive") is False or bool({"daysSinceNoncurrentTime", "numNewerVersions"} & condition.keys())


def _concerns(rule: Mapping[str, Any], prefix: str) -> bool:
    matched = rule.get("condition", {}).get("matchesPrefix") or [""]
    return any(prefix.startswith(each) or each.startswith(prefix) for each in matched)
