"""The deleted runs of one partition of the catalog, as far as an archiver has read it."""

from collections.abc import Iterable


class DeletedRuns:
    """What the archive may have of deleted runs. Each run id has the log id of its life."""

    def __init__(self, *, since: int = 0) -> None:
        """`since` is the offset before which an earlier reading has noted what was deleted."""
        self.runs: dict[str, str] = {}
        """The runs that are removed from the archive next."""
        self.doubtful: dict[str, str] = {}
        """The runs that are removed unless the archive knows that they are deleted."""
        self.entries: dict[str, str] = {}
        """Runs that are known by `log:` entries only. They are removed if the archive knows that
        they are deleted: their rows, or their entries, were written meanwhile.
        """
        self.new_entries: set[str] = set()
        """The entries that the earlier reading did not have, if there was one."""
        self._since = since

    def note_life(self, run_id: str, log_id: str, *, offset: int) -> None:
        """Notes a deleted life."""
        if offset >= self._since:
            self.runs[run_id] = log_id

    def note_entry(self, run_id: str, log_id: str | None, *, offset: int) -> None:
        """Notes the entry of a run that has no topic. `log_id` is None if a removal is said to be
        complete.
        """
        if log_id is None:
            self.entries.pop(run_id, None)
            self.new_entries.discard(run_id)
        else:
            self.entries[run_id] = log_id
            if offset >= self._since > 0:
                self.new_entries.add(run_id)

    def take(self, read: "DeletedRuns") -> None:
        """Takes what a reading of the whole partition has found. A run with an entry was perhaps
        never removed; of the others the archive knows.
        """
        for run_id, log_id in read.runs.items():
            (self.runs if run_id in read.entries else self.doubtful)[run_id] = log_id
        self.entries |= {run_id: read.entries[run_id] for run_id in read.new_entries}

    def forget(self, run_ids: Iterable[str]) -> None:
        """Forgets runs that are removed."""
        for run_id in run_ids:
            del self.runs[run_id]
