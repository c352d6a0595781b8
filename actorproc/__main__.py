"""`actorproc`, `python -m actorproc`: the command line. Ctrl-C while it is imported ends it quietly."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `actorproc` command."""
    try:
        from actorproc.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
