"""Output rows: schemas in Spark's words, and what handlers emit as Arrow that keeps to them."""
