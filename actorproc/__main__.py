"""`python -m actorproc`: the command line."""

from __future__ import annotations

from actorproc.cli import main

main()
