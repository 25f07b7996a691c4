"""`runfold erase` and `runfold erased`."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from runfold.archive.opening import opened
from runfold.cli.terminal import new_console, print_json_document
from runfold.client.runfold import Runfold
from runfold.erasure.contents import Readable
from runfold.erasure.erasure import erase_user
from runfold.erasure.receipt import Removed
from runfold.erasure.search import FoundName, search
from runfold.printable import on_one_line
from runfold.remote.api_client import HttpClient, quoted
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.editions import Editions
from runfold_schemas.errors import ConfigurationError, RunfoldError

_KINDS: Final = {
    Readable.CLEAR: "[red]readable[/] in",
    Readable.BY_KEY: "[red]readable[/] by a key, in",
    Readable.NO: "ids alone in",
}

_SHOWN_MAX: Final = 3
"""How many finds of one place are printed."""

_AWAITED: Final = ("a projector", "an archiver")
"""Who an erasure may wait for, in its words."""

_SILENT_SECONDS: Final = 10.0
"""How often an erasure says what it is waiting for."""


async def erase(settings: Settings, user: str) -> None:
    """Erases a user, and prints the receipt with the ids of what was erased. Raises
    `ConfigurationError` if no projector has ever folded the tenant.
    """
    await _check_folded(settings)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    errors = new_console(stderr=True, soft_wrap=True)
    async with Runfold.of(settings.log("runfold/erase").of_visitor()) as runfold:
        with _progress(*columns) as bar:
            task = bar.add_task("beginning")
            saying = asyncio.create_task(_say_what_it_does(bar, settings.prefix))
            try:
                erased = await erase_user(
                    settings,
                    runfold.connection,
                    user,
                    report=lambda doing: bar.update(task, description=escape(doing)),
                )
            finally:
                saying.cancel()
    signed = erased.signed
    if signed.receipt.removed == Removed():
        line = f"nothing of this user was found in the tenant {settings.prefix}: {user!r}"
        errors.print(escape(on_one_line(line)), highlight=False)
    print_json_document(
        {
            "receipt": json.loads(signed.text),
            "signed_text": signed.text,
            "signature": signed.signature,
            "public_key": signed.public_key,
            "sessions": erased.sessions,
            "runs": erased.runs,
        }
    )


async def _check_folded(settings: Settings) -> None:
    """Raises `ConfigurationError` if no projector has ever folded the tenant. The check comes
    before a connection to Kafka, which would create the topics of a mistyped tenant.
    """
    async with connect(settings.mongo, settings.database) as database:
        pointer = await Editions(database).pointer()
    if pointer is None or pointer.partitions is None:
        raise ConfigurationError(
            f"no projector has folded the tenant {settings.prefix} into the database {settings.database}, so"
            " nothing can be erased: check RUNFOLD_PREFIX with `runfold tenants list`, and that a projector"
            " runs"
        )


async def _say_what_it_does(bar: Progress, tenant: str) -> None:
    while True:
        await asyncio.sleep(_SILENT_SECONDS)
        doing = bar.tasks[0].description
        server = next((name for name in _AWAITED if name in doing), None)
        hint = f"check that {server} of the tenant {tenant} runs" if server else "it goes on"
        bar.console.print(f"{doing}: {hint}", highlight=False)


async def erased(settings: Settings, user: str, *, receipt: Path | None, api: str | None) -> int:
    """Prints what is left of a user. Returns the exit code, 1 if something readable is left."""
    console, more = new_console(soft_wrap=True), _ids_in(receipt)
    archive = opened(settings.archive_url, settings.prefix) if settings.archive_url is not None else None
    # First, because a wrong key or address shows at once.
    answers = await _ask(api, settings, user, more) if api is not None else []
    _print_found(console, answers)
    columns = (TextColumn("searching {task.description}"), BarColumn(), MofNCompleteColumn())
    found = [*answers]
    async with (
        Runfold.of(settings.log("runfold/erase").of_visitor()) as runfold,
        connect(settings.mongo, settings.database) as database,
    ):
        with _progress(*columns) as bar:
            task = bar.add_task("the log", total=None)
            searching = search(runfold.connection, database, user=user, more=more, archive=archive)
            async with aclosing(searching) as places:
                async for looked in places:
                    description = escape(on_one_line(looked.place))
                    bar.update(task, completed=looked.done, total=looked.total, description=description)
                    _print_found(console, looked.found)
                    found += looked.found
        has_unsearched = archive is None and await runfold.connection.catalog.has_sealed()
    if has_unsearched:
        console.print("not searched: the archive, because RUNFOLD_ARCHIVE_URL is not set", style="red")
    readable = sum(each.is_readable for each in found)
    in_clear = sum(each.readable is Readable.CLEAR for each in found[len(answers) :])
    console.print(
        f"{readable} places have something readable of the user, {len(found) - readable} have ids alone; not"
        " searched: MongoDB's oplog, backups, audit logs",
        highlight=False,
    )
    if settings.encryption_key is not None and in_clear:
        console.print(
            f"{in_clear} of the readable places are in clear: they were written before encryption was"
            " switched on, or have what stays clear",
            highlight=False,
        )
    return 1 if readable else 0


def _progress(*columns: ProgressColumn) -> Progress:
    """A progress on the error output, if that is a terminal."""
    console = new_console(stderr=True, soft_wrap=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _ids_in(receipt: Path | None) -> list[str]:
    """The ids in the answer to an erasure. Raises `ConfigurationError`."""
    if receipt is None:
        return []
    try:
        answer = json.loads(receipt.read_text())
        return [str(id_) for name in ("sessions", "runs") for id_ in answer.get(name, [])]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"{receipt} is not the answer to an erasure: {error}") from error


def _print_found(console: Console, found: Sequence[FoundName]) -> None:
    for way, kind in _KINDS.items():
        same = [each for each in found if each.readable is way]
        if not same:
            continue
        examples = ", ".join(f"{each.where} ({each.name})" for each in same[:_SHOWN_MAX])
        further = f" and {len(same) - _SHOWN_MAX:,} more" if len(same) > _SHOWN_MAX else ""
        line = escape(on_one_line(f"{same[0].place}: {examples}{further}"))
        console.print(f"{kind} {line}", highlight=False)


async def _ask(api: str, settings: Settings, user: str, ids: Iterable[str]) -> list[FoundName]:
    """What an API still answers about the user and these ids."""
    key = settings.api_key.get_secret_value() if settings.api_key is not None else None
    client, found = HttpClient(api, api_key=key), list[FoundName]()
    try:
        await _check_tenant(client, settings)
        listed = json.loads(await client.call("GET", "sessions", params={"user": user, "limit": 1}))
        if listed["sessions"]:
            found.append(FoundName(f"API, {api}", "GET /v1/sessions", user, Readable.CLEAR))
        for id_ in ids:
            for path in (f"runs/{quoted(id_)}", f"sessions/{quoted(id_)}"):
                if await _answers(client, path):
                    found.append(FoundName(f"API, {api}", f"GET /v1/{path}", id_, Readable.CLEAR))
    finally:
        await client.close()
    return found


async def _check_tenant(client: HttpClient, settings: Settings) -> None:
    """Raises `ConfigurationError` if the API answers about another tenant, or about a part."""
    login = json.loads(await client.call("GET", "login"))
    if login["tenant"] != settings.prefix:
        raise ConfigurationError(
            f"the API answers for the tenant {login['tenant']}, and the search is in {settings.prefix}: set"
            " RUNFOLD_PREFIX, or set RUNFOLD_API_KEY to a key of that tenant"
        )
    if login["agents"] is not None or login["users"] is not None:
        raise ConfigurationError("RUNFOLD_API_KEY is limited to agents or users, so the API hides the rest")


async def _answers(client: HttpClient, path: str) -> bool:
    try:
        await client.call("GET", path)
    except RunfoldError as error:
        if error.retriable:
            raise
        return False
    return True
