"""`runfold dead-letters`: the records that could not be decoded, and publishing them again."""

import getpass
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.text import Text

from runfold import Runfold
from runfold.cli.memory_lines import local_time, plain, print_fields, print_json, print_rows, with_age
from runfold.cli.terminal import new_console, print_line
from runfold.encryption.sealing import open_sealing
from runfold.printable import on_one_line
from runfold.query.dead_letters import DeadLetters
from runfold.settings import Settings
from runfold_schemas.errors import InvalidEventError


async def ls(settings: Settings, *, run_id: str | None, limit: int, as_json: bool) -> None:
    """Lists dead letters, the newest first."""
    page = await DeadLetters(settings.log().of_visitor()).list(run_id=run_id, limit=limit)
    if as_json:
        for entry in page.dead_letters:
            print_json(entry)
    elif not page.dead_letters:
        new_console(stderr=True).print("there are no dead letters", style="dim")
    else:
        rows = [
            (
                entry.id,
                local_time(entry.buried_at),
                f"{entry.bytes:,}",
                "yes" if entry.requeued is not None else "",
                entry.reason,
            )
            for entry in page.dead_letters
        ]
        print_rows(new_console(), ("id", "since", "bytes", "requeued", "reason"), rows)
    if page.next_cursor is not None:
        new_console(stderr=True).print("there are more: use --limit to list more", style="dim")


async def show(settings: Settings, *, letter_id: str, as_json: bool) -> None:
    """Shows a dead letter with its content."""
    log = settings.log().of_visitor()
    async with open_sealing(log) if log.encryption_key is not None else nullcontext() as sealing:
        letter = await DeadLetters(log).get(letter_id, sealing=sealing)
    if as_json:
        print_json(letter)
        return
    place = "" if letter.partition is None else f", partition {letter.partition}"
    fields = {
        "id": plain(letter.id),
        "run": plain(letter.run_id or ""),
        "place": Text(f"offset {letter.offset} of {letter.topic}{place}"),
        "reason": plain(letter.reason),
        "since": Text(with_age(letter.buried_at)),
        "headers": plain("\n".join(f"{name}: {value}" for name, value in letter.headers)),
        "value": plain(letter.value if letter.value is not None else f"base64: {letter.value_base64}"),
    }
    if letter.requeued is not None:
        done = letter.requeued
        fields["requeued"] = plain(
            f"at offset {done.offset} of run {done.run_id}, {with_age(done.at)}, by {done.by}"
        )
    print_fields(new_console(), fields)


async def requeue(settings: Settings, *, letter_id: str, event: Path | None) -> None:
    """Publishes the event of a dead letter again."""
    mended = None if event is None else _event(event)
    log = settings.log()
    async with Runfold.of(log.of_visitor()) as runfold:
        letters = DeadLetters(runfold.connection.settings)
        try:
            done = await letters.requeue(letter_id, runfold, event=mended, by=f"command:{getpass.getuser()}")
        except InvalidEventError as error:
            if mended is None and error.field == "event":
                raise InvalidEventError(f"{error}, with --event FILE", field="event") from error
            raise
    assert done.requeued is not None
    print_line(
        f"{on_one_line(done.id)}: published at offset {done.requeued.offset} of run"
        f" {on_one_line(done.requeued.run_id)}"
    )


def _event(path: Path) -> dict[str, Any]:
    try:
        event = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidEventError(f"{path} has no JSON: {error}", field="event") from None
    if not isinstance(event, dict):
        raise InvalidEventError(f"{path} has no JSON object", field="event")
    return event
