"""What users subclass, `PartitionHandler`, and what their code holds while it works on a batch."""
