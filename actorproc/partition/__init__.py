"""One per partition: reads, handles, commits. What is read ahead, how large batches are, and what becomes of bad records."""
