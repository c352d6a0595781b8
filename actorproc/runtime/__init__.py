"""What everything else runs on: actors, clock, threads, signals, back-off, budgets, logging."""
