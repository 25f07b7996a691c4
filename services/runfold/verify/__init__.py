"""Comparing MongoDB with the log: runs, and what is folded from the shared topics."""
