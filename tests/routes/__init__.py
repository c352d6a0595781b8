"""The house in numbers, and the routes through it that `docs/architecture.md` shows: `python -m tests.routes`."""
