"""The group: who is in, who runs which partition, and how that changes without a coordinator."""
