"""`runfold verify --chain`, `runfold proof` and `runfold evidence`."""

from pathlib import Path

from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from runfold.cli.terminal import new_console, print_json_document, print_line
from runfold.evidence.bucket import bucket_of
from runfold.evidence.keys import add_key, public_pem, read_keys
from runfold.evidence.proof import NoProofError, prove
from runfold.log.fetch_answer import silent_about
from runfold.log.reader import LogGoneError
from runfold.printable import on_one_line
from runfold.projector.mending import find_log
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.verify.chains import UNSIGNED_SECONDS, ChainReport, verify_chains
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.topics import Partition

_UNSIGNED = (
    "nothing was signed yet: set RUNFOLD_SIGNING_KEYS for the projectors; `runfold evidence generate FILE`"
    " makes a key"
)


async def verify_chain(settings: Settings, *, run_id: str | None) -> int:
    """Prints every difference from what was signed. Returns the exit code, 1 if there is one."""
    console = new_console(soft_wrap=True)
    trusted = _trusted(settings)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    report, shown = ChainReport(), 0
    async with connect(settings.mongo, settings.database) as database:
        stores = Edition.of(database, await Editions(database).current_or_first())
        with (
            silent_about(await stores.skips.reader()),
            Progress(*columns, console=console, transient=True) as bar,
        ):
            task = bar.add_task("reading the signed trees")
            compared = verify_chains(
                settings.log(),
                stores,
                trusted,
                run_id=run_id,
                bucket=bucket_of(settings),
                unsigned_seconds=max(UNSIGNED_SECONDS, 3 * settings.signing_seconds),
            )
            async for report in compared:
                bar.update(task, description=f"{report.logs} logs compared, {len(report.faults)} differences")
                for fault in report.faults[shown:]:
                    line = f"[red]{fault.kind}[/] in {escape(on_one_line(fault.where))}:"
                    console.print(f"{line} {escape(on_one_line(fault.detail))}", highlight=False)
                shown = len(report.faults)
    if not report.trees and not report.faults:
        console.print(_UNSIGNED)
        return 1
    for deletion in report.deletions:
        line = f"run {deletion.run_id} was deleted at {deletion.time}, with its log {deletion.log_id}"
        console.print(escape(on_one_line(line)), highlight=False)
    deleted = f"; {report.deleted} signed logs are of deleted runs" if report.deleted else ""
    unsigned = f"; {report.unsigned} records are behind the last heads" if report.unsigned else ""
    console.print(
        f"{report.logs} logs compared with {report.heads} signed heads in {report.trees} trees, the last of"
        f" {report.last_time or 'never'}: {len(report.faults)} differences{deleted}{unsigned}",
        highlight=False,
    )
    return 1 if report.faults else 0


async def proof(settings: Settings, *, run_id: str, offset: int) -> None:
    """Prints the proof of a record."""
    log, trusted = settings.log(), _trusted(settings)
    run = await find_log(log, run_id)
    at = Partition(log.topics.run(run.run_id, run.log_id), 0)
    try:
        found = await prove(log, trusted, at=at, offset=offset)
    except LogGoneError as error:
        raise NoProofError(str(error)) from error
    print_json_document(found.model_dump(mode="json"))


async def generate(path: Path) -> None:
    public = add_key(path)
    console = new_console(soft_wrap=True)
    console.print(f"{escape(str(path))} has a new signing key. Publish its public key:\n{public}")


async def keys(settings: Settings, *, pem: bool) -> None:
    for public in _trusted(settings):
        for line in (public_pem(public) if pem else public).splitlines():
            print_line(line)


def _trusted(settings: Settings) -> tuple[str, ...]:
    if settings.signing_keys is None:
        raise ConfigurationError(
            "RUNFOLD_SIGNING_KEYS is not set: it names the file with the keys of evidence, of which the"
            " public ones are enough to verify"
        )
    return read_keys(settings.signing_keys).trusted
