"""HTTP out: run records, events, ledgers and live runs, from MongoDB or from the log.

app ──> RunReader ──┬──> SnapshotHistory ──> StoredRuns ──> MongoDB     a run's records, by slices
         │          └──> LogHistory ──────> RunCatalog ──> Kafka
         ├─> as_of            where a prefix of a history ends
         ├─> ledger_reader    records -> messages; checkpoints are its cache
         └─> events           records -> JSON with the bytes of the log
app ──> LiveRuns              one tail for all followers
"""
