"""`runfold verify`: compares the projections with the log."""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from runfold.cli.restoring import refold_keys
from runfold.cli.terminal import new_console
from runfold.log.fetch_answer import silent_about
from runfold.log.partition_counts import counted
from runfold.log.settings import LogSettings
from runfold.printable import on_one_line
from runfold.projector.mending import UNMENDABLE, find_log
from runfold.projector.quarantine import defect, reason_of
from runfold.projector.refold import refold
from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.store.quarantine import Quarantined, remedy_of, run_id_of
from runfold.store.reports import ReportStore
from runfold.verify import runs as verifying
from runfold.verify.memories import verify_memories
from runfold.verify.sessions import verify_sessions
from runfold.verify.shared import SharedDifference
from runfold_schemas.errors import RunNotFoundError

QUARANTINED: Final = 3
"""The exit code if nothing differs, but something is in quarantine and therefore not folded."""


async def verify(settings: Settings, *, run_id: str | None, restore: bool = False) -> int:
    """Prints every difference, and what is in quarantine. With `restore` mends what the log can
    mend. Returns the exit code: 1 if there is a difference (left), else `QUARANTINED` or 0.
    """
    console = new_console(soft_wrap=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    began = time.monotonic()
    async with connect(settings.mongo, settings.database) as database:
        edition = await Editions(database).current()
        if edition is None:
            console.print(
                "this database contains no projections yet: start a projector (`runfold serve projector`),"
                f" or check the prefix {settings.prefix} (RUNFOLD_PREFIX)"
            )
            return 1
        stores, log = Edition.of(database, edition), await counted(settings.log().of_visitor())
        with (
            silent_about(await stores.skips.reader()),
            Progress(*columns, console=console, transient=True) as bar,
        ):
            comparison = _Comparison(log, stores, console, bar, restore=restore)
            await comparison.compare_runs(run_id)
            if run_id is None:
                await comparison.compare_shared()
            await comparison.show_quarantined(run_id)
            if run_id is None:
                await _note(database, settings.prefix, comparison, seconds=time.monotonic() - began)
    if run_id is not None and not comparison.runs and not comparison.quarantined:
        raise RunNotFoundError(run_id)
    console.print(comparison.summary(run_id))
    if comparison.differences > comparison.restored:
        return 1
    return QUARANTINED if comparison.quarantined else 0


async def _note(database: Database, tenant: str, comparison: "_Comparison", *, seconds: float) -> None:
    """Notes the result, for `runfold status` and metrics."""
    left = comparison.differences - comparison.restored
    status = "different" if left > 0 else "quarantined" if comparison.quarantined else "ok"
    fields = {"status": status, "differences": max(0, left), "duration_seconds": seconds}
    await ReportStore(database).note_job("verify", tenant, fields)


class _Comparison:
    """One comparison, and what was found so far."""

    def __init__(
        self, log: LogSettings, stores: Edition, console: Console, bar: Progress, *, restore: bool
    ) -> None:
        self.runs = self.sessions = self.memories = self.differences = self.restored = 0
        self.quarantined = 0
        self._log = log
        self._stores = stores
        self._console = console
        self._bar = bar
        self._task = bar.add_task("reading the log")
        self._restore = restore

    async def compare_runs(self, run_id: str | None) -> None:
        async for name, of_run in verifying.verify(self._log, self._stores, run_id=run_id):
            self.runs, self.differences = self.runs + 1, self.differences + len(of_run)
            self._bar.update(
                self._task, description=f"{self.runs} runs compared, {self.differences} differences"
            )
            for difference in of_run:
                at = f" at offset {difference.offset}" if difference.offset is not None else ""
                _print_difference(self._console, difference.kind, f"run {name}{at}", difference.detail)
            if of_run and self._restore:
                self.restored += await self._restore_run(name, len(of_run))

    async def compare_shared(self) -> None:
        self._bar.update(self._task, description="reading sessions")
        self.sessions, shared = await verify_sessions(self._log, self._stores)
        await self._take_shared(shared, verify_sessions)
        self._bar.update(self._task, description="reading memories")
        self.memories, shared = await verify_memories(self._log, self._stores)
        await self._take_shared(shared, verify_memories)

    async def show_quarantined(self, run_id: str | None) -> None:
        entries = await self._stores.quarantine.all()
        self.quarantined = _print_quarantined(self._console, entries, run_id=run_id)

    def summary(self, run_id: str | None) -> str:
        counts = f"{self.runs} runs, {self.sessions} sessions and {self.memories} memories"
        compared = f"{self.runs} runs" if run_id is not None else counts
        restored = f", {self.restored} of them restored" if self._restore and self.differences else ""
        waiting = f", {self.quarantined} in quarantine" if self.quarantined else ""
        return f"{compared} compared with the log, {self.differences} differences{restored}{waiting}"

    async def _take_shared(
        self,
        shared: Sequence[SharedDifference],
        compare: Callable[[LogSettings, Edition], Awaitable[tuple[int, list[SharedDifference]]]],
    ) -> None:
        self.differences += _print_differences(self._console, shared)
        keys = {difference.key for difference in shared if difference.key is not None}
        if keys and self._restore:
            try:
                await self._refold(keys)
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                self._fail(f"{len(keys)} keys", reason_of(defect(error)))
            _, left = await compare(self._log, self._stores)
            self.restored += max(0, len(shared) - len(left))

    async def _refold(self, keys: Collection[str]) -> None:
        """Has the keys folded anew by their owners."""

        def report(left: int) -> None:
            described = f"waiting for a projector to fold {left} of {len(keys)} keys anew"
            self._bar.update(self._task, description=described)

        if left := await refold_keys(self._log.topics, self._stores, keys, report=report):
            self._console.print(
                f"{left} of {len(keys)} keys are not restored yet, because no projector acts on them. Start"
                " one with `runfold serve projector`: it folds them anew, as `runfold verify` shows then",
                highlight=False,
            )

    async def _restore_run(self, run_id: str, count: int) -> int:
        """Folds the run anew. Returns how many of its `count` differences are gone."""
        try:
            await refold(self._stores, self._log, await find_log(self._log, run_id))
        except UNMENDABLE as error:
            return self._fail(f"run {run_id}", str(error))
        except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
            return self._fail(f"run {run_id}", reason_of(defect(error)))
        left = 0
        async for _, again in verifying.verify(self._log, self._stores, run_id=run_id):
            left += len(again)
        self._console.print(f"run {escape(run_id)} is restored from its log", highlight=False)
        return max(0, count - left)

    def _fail(self, what: str, reason: str) -> int:
        """Says that `what` cannot be restored. Returns the number of restored differences."""
        shown = escape(on_one_line(f"{what} cannot be restored: {reason}"))
        self._console.print(shown, highlight=False)
        return 0


def _print_quarantined(console: Console, entries: Sequence[Quarantined], *, run_id: str | None) -> int:
    shown = [entry for entry in entries if run_id is None or entry.id == run_id_of(run_id)]
    for entry in shown:
        console.print(
            f"[yellow]in quarantine[/]: {escape(on_one_line(entry.id))} at offset {entry.offset}:"
            f" {escape(on_one_line(entry.reason))}",
            highlight=False,
        )
    for remedy in dict.fromkeys(remedy for entry in shown if (remedy := remedy_of(entry))):
        console.print(f"if its log does not come back: {escape(remedy)}", highlight=False)
    return len(shown)


def _print_differences(console: Console, differences: Sequence[SharedDifference]) -> int:
    for difference in differences:
        _print_difference(console, difference.kind, difference.place, difference.detail)
    return len(differences)


def _print_difference(console: Console, kind: str, place: str, detail: str) -> None:
    console.print(f"[red]{kind}[/] in {escape(place)}: {escape(detail)}", highlight=False)
