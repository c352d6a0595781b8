"""Output rows: schemas in Spark's words, and the rows of handlers as Arrow that keeps to them."""
