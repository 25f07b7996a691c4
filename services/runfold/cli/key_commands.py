"""The options of `runfold keys`. `keys.py` has what the commands do."""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import typer

from runfold.cli.running import load_command, run, settings_in_force

keys = typer.Typer(
    no_args_is_help=True,
    help="Make, list, rotate and revoke the API keys of clients.\n\nNeeds Kafka.",
)


class ScopeName(StrEnum):
    """What the holder of a key may do."""

    publish = "publish"
    read = "read"
    memories = "memories"
    administer = "administer"


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 90d, 24h, 30m or 0s")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id: the part after `rf_`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")]


@keys.command(epilog="Example: runfold keys add shop --scope publish --scope read --agent shop --expires 90d")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Says what the key is for.")],
    *,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="The tenant whose data the holder may use.", show_default="the installation itself"
        ),
    ] = None,
    scope: Annotated[
        list[ScopeName] | None,
        typer.Option(
            help="What the holder may do; the option can be repeated.",
            show_default="publish, read and memories",
        ),
    ] = None,
    no_scopes: Annotated[
        bool, typer.Option("--no-scopes", help="The key proves who sends, and allows nothing else.")
    ] = False,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="Only the data of this agent, app or bank; can be repeated.", show_default="all"),
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(help="Only the data of this user; can be repeated.", show_default="all"),
    ] = None,
    expires: Annotated[
        timedelta | None,
        typer.Option(
            help="For how long the key is valid: 90d, 24h, 30m.",
            show_default="for ever",
            parser=_duration,
            metavar="TIME",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and print it. It cannot be printed again.

    Needs Kafka. Only the key goes to the standard output, so that a script can store it.
    """
    if no_scopes and scope:
        raise typer.BadParameter("give --scope or --no-scopes, not both")
    scopes = [] if no_scopes else [each.value for each in scope] if scope else None
    add_key = load_command("keys", "add")
    run(
        add_key(
            settings_in_force(),
            name=name,
            tenant=tenant,
            scopes=scopes,
            agents=agent or None,
            users=user or None,
            expires=expires,
            as_json=as_json,
        )
    )


@keys.command("list", epilog="Example: runfold keys list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only the keys of this tenant.")] = None,
    as_json: AsJson = False,
) -> None:
    """List all keys with their ids, also those that have expired or were revoked.

    Needs Kafka.
    """
    run(load_command("keys", "ls")(settings_in_force(), tenant=tenant, as_json=as_json))


@keys.command(epilog="Example: runfold keys rotate 0123456789abcdef --overlap 24h")
def rotate(
    key_id: KeyId,
    overlap: Annotated[
        timedelta | None,
        typer.Option(
            help="For how long the old secret stays valid too: 24h, 30m, 0s.",
            show_default="24h",
            parser=_duration,
            metavar="TIME",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret, and print it. Its id, scopes and limits stay.

    Needs Kafka.
    """
    run(load_command("keys", "rotate")(settings_in_force(), key_id=key_id, overlap=overlap, as_json=as_json))


@keys.command(epilog="Example: runfold keys revoke 0123456789abcdef")
def revoke(key_id: KeyId) -> None:
    """Revoke a key for good.

    Needs Kafka. All services refuse the key within a second.
    """
    run(load_command("keys", "revoke")(settings_in_force(), key_id=key_id))
