"""Evidence: heads of the logs' chains in signed trees, and proofs that one record is in its log."""
