"""HTTP out: run records, events, ledgers and live runs, from the snapshot in MongoDB or from the
log.

app ──> RunReader ──┬──> SnapshotHistory ──> StoredRuns ──> MongoDB        a run's records, slice by slice
         │          └──> LogHistory ──────> RunCatalog, reader ──> Kafka
         ├─> as_of      where a history is cut off
         ├─> ledger     records -> messages, in two passes, streamed
         └─> events     records -> the bytes that are in the log
app ──> LiveRuns        one tail for all who follow a run
"""
