"""Objects in a store: the contract of a backend, settled conditional writes, documents, names, Parquet, the probe."""
