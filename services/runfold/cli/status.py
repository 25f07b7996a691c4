"""`runfold status`: how the installation works, as `GET /v1/operations` says it."""

from collections.abc import Iterator, Mapping

from rich.text import Text

from runfold.cli.memory_lines import plain, print_fields, print_rows, with_age
from runfold.cli.terminal import new_console, print_json_line
from runfold.documents.operations import ArchiveDocument, Lag, OperationsDocument
from runfold.query.dead_letters import DeadLetters
from runfold.query.operations import OperationsReader
from runfold.query.reading import Reading
from runfold.settings import Settings


async def status(settings: Settings, *, as_json: bool) -> int:
    """Prints it. Returns the exit code: 0 if everything works, otherwise 1."""
    async with Reading(settings) as reading:
        reader = OperationsReader(
            settings,
            installation=reading.stored_runs,
            stored=reading.stored_runs,
            ends=reading.log_ends,
            dead_letters=DeadLetters(settings.log().of_visitor()),
        )
        document = await reader.read()
    if as_json:
        print_json_line(document.model_dump_json(by_alias=True))
    else:
        _print(document)
    return 0 if document.status == "ok" else 1


def _print(document: OperationsDocument) -> None:
    console = new_console()
    print_fields(console, dict(_fields(document)))
    if document.projectors:
        console.print()
        print_rows(
            console,
            ("projector", "status", "partitions", "runs", "behind", "seen"),
            (
                (
                    each.worker_id,
                    each.status,
                    str(len(each.partitions)),
                    str(each.active_runs),
                    _behind(each.lag),
                    with_age(each.seen_at),
                )
                for each in document.projectors
            ),
        )


def _behind(lag: Lag) -> str:
    return f"{lag.records:,} records, {'unknown time' if lag.seconds is None else f'{lag.seconds:.1f} s'}"


def _fields(document: OperationsDocument) -> Iterator[tuple[str, Text]]:
    yield "status", Text(document.status)
    if document.reasons:
        yield "reasons", plain("\n".join(document.reasons))
    yield "behind", Text(_behind(document.lag))
    yield "runs", Text(_counts(document.runs))
    yield "quarantine", Text(_counts(document.quarantine))
    letters = "unknown" if document.dead_letters is None else f"{document.dead_letters:,}"
    yield "dead letters", Text(letters)
    if document.archive is not None:
        yield "archive", plain(_archive(document.archive))
    yield "edition", Text(document.editions.current or "none")
    if document.rebuild is not None:
        done, total = document.rebuild.done_records, document.rebuild.total_records
        yield "rebuild", Text(f"{document.rebuild.status}, {done:,} of {total:,} records")
    if document.verify_report is not None:
        ended = with_age(document.verify_report.ended_at)
        yield "verify", Text(f"{document.verify_report.status}, {ended}")


def _archive(archive: ArchiveDocument) -> str:
    if archive.records is None or archive.stored_bytes is None:
        return f"away: {archive.last_error}"
    written = "never written" if archive.committed_at is None else f"written {with_age(archive.committed_at)}"
    return f"{archive.logs:,} logs, {archive.records:,} records in {archive.stored_bytes:,} bytes, {written}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()) if count) or "none"
