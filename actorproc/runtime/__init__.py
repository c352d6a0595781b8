"""The base of everything else: actors, clock, threads, signals, back-off, budgets, logging."""
