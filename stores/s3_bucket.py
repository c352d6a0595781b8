"""Settings of an S3 bucket that cost money or delete what is needed, for `actorproc doctor`."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any

from botocore import exceptions as aws

_REWRITES = "each host rewrites its heartbeat five times a minute"


async def bucket_warnings(client: Any, bucket: str, prefix: str) -> list[str]:
    """A line for each. A question that the service refuses or does not know is left out.

    Args:
        prefix: of our keys in the bucket.
    """
    rules = (await _answer(client.get_bucket_lifecycle_configuration(Bucket=bucket))).get("Rules", [])
    ours = [rule for rule in rules if rule.get("Status") == "Enabled" and _concerns(_prefix_of(rule), prefix)]
    found = [warning for rule in ours for warning in _of_rule(rule)]
    versioned = (await _answer(client.get_bucket_versioning(Bucket=bucket))).get("Status") == "Enabled"
    if versioned and not any("NoncurrentVersionExpiration" in rule for rule in ours):
        found.append(
            f"the bucket keeps all versions: {_REWRITES}, and deleted files stay. Add a lifecycle rule that expires "
            "noncurrent versions after some days, or use a bucket without versions"
        )
    lock = (await _answer(client.get_object_lock_configuration(Bucket=bucket))).get("ObjectLockConfiguration", {})
    if "DefaultRetention" in lock.get("Rule", {}):
        found.append(
            f"the bucket locks each new object for a time: {_REWRITES}, and no version of it can be deleted meanwhile. "
            "Use a bucket without a default retention"
        )
    return found


def _of_rule(rule: dict[str, Any]) -> Iterator[str]:
    name = f"lifecycle rule {rule.get('ID', '')!r}"
    if {"Days", "Date"} & rule.get("Expiration", {}).keys():
        yield (
            f"{name} deletes objects by age: commits, checkpoints and the log's files are needed however old they are. "
            "Limit it to other prefixes; `actorproc trim` deletes what nobody needs"
        )
    for transition in rule.get("Transitions", []):
        kind = transition.get("StorageClass", "")
        if kind not in ("STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"):
            yield f"{name} moves objects to {kind}, from which they cannot be read at once"


def _prefix_of(rule: dict[str, Any]) -> str:
    where = rule.get("Filter", {})
    return str(rule.get("Prefix") or where.get("Prefix") or where.get("And", {}).get("Prefix") or "")


def _concerns(rule: str, prefix: str) -> bool:
    return prefix.startswith(rule) or rule.startswith(prefix)


async def _answer(question: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    try:
        return await question
    except (aws.ClientError, aws.BotoCoreError):
        return {}
