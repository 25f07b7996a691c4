"""The error of an archive that does not have what it had."""

from runfold_schemas.errors import RunfoldError


class ArchiveDamagedError(RunfoldError):
    """The archive lacks records of a run, or has them not as they were archived. Only restoring the
    archive's files helps.
    """

    def __init__(self, run_id: str, *, reason: str) -> None:
        super().__init__(f"the archived run {run_id!r} is damaged ({reason}): restore the archive's files")
        self.run_id = run_id
        self.reason = reason
