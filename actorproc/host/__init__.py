"""One per host: its timers, its partitions made to run as the leases say, and running until the end."""
