"""A cluster in virtual time: event loop, hosts, faulty store, and the invariants that are checked on every write."""
