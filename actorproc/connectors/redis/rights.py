"""Tries what a delivery needs, and changes nothing: the commands within a script, and the types of keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from actorproc.sinks.protocol import SinkRefused

_CALL = re.compile(r"redis\.call\('([A-Z]+)'(?:, '([A-Z]+)')?")

_CHECK = """
if not redis.acl_check_cmd then return '' end  -- before Redis 7
local keys = tonumber(ARGV[1])
for k = 2, keys + 1 do
  for i = keys + 2, #ARGV do
    local key, call = ARGV[k], {}
    for name in string.gmatch(ARGV[i], '%S+') do call[#call + 1] = name end
    call[#call + 1] = key
    if not redis.acl_check_cmd(unpack(call)) then return ARGV[i] .. ' ' .. key end
  end
end
return ''
"""
"""ARGV: number of keys, these, and commands. No KEYS: the server would refuse them, and not say which."""


def commands_of(script: str) -> list[str]:
    """The commands that a script calls, with their subcommands."""
    return sorted({" ".join(filter(None, found)) for found in _CALL.findall(script)})


async def check_rights(client: Any, keys: Sequence[str], script: str) -> None:
    """Ask the server whether the user may call the commands of a script, on each of these keys.

    Raises:
        SinkRefused: one is not allowed.
    """
    missing = await client.eval(_CHECK, 0, len(keys), *keys, *commands_of(script))
    if missing:
        raise SinkRefused(f"the user lacks the right to {missing.decode()}")


async def check_type(client: Any, key: str, wanted: str) -> None:
    """Raises SinkRefused: the key is there, and is something else than a `wanted`."""
    found = (await client.type(key)).decode()
    if found not in ("none", wanted):
        raise SinkRefused(f"the key {key!r} is a {found}, not a {wanted}")
