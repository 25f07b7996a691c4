"""`runfold acls`: the commands, and wrong arguments."""

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runfold.cli.program import app
from runfold.log.acls import Acl, Resource, Role, acls_of, commands
from runfold_schemas.topics import Topics


def test_a_producer_has_the_runs_whose_ids_begin_with_a_text():
    (acl,) = acls_of(Role.producer, Topics("acme"), runs="travel/desk-")

    assert acl == Acl(Resource.topic, "acme.run.travel_2fdesk-", ("Write", "Describe"), is_prefix=True)
    assert Topics("acme").run("travel/desk-7", "0" * 32).startswith(acl.name)


def test_the_help_says_that_a_producer_is_trusted_with_the_effects_of_its_events():
    shown = CliRunner().invoke(app, ["acls", "--help"], env={"COLUMNS": "400"}).output

    assert "may still change banks, memories and state" in " ".join(shown.split())


def test_no_name_ends_its_command():
    (command,) = commands(
        [Acl(Resource.topic, "a", ("Read",))], kafka="k:1; rm", user="CN=a b,O='c'\n$(reboot)"
    )

    assert shlex.split(command) == [
        *("kafka-acls.sh", "--bootstrap-server", "k:1; rm", "--add"),
        *("--allow-principal", "User:CN=a b,O='c'\n$(reboot)", "--operation", "Read"),
        *("--topic", "a", "--resource-pattern-type", "literal"),
    ]


def test_a_client_has_rights_on_the_keys_only_with_encryption(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("RUNFOLD_ENCRYPTION_KEY", raising=False)
    plain = CliRunner().invoke(app, ["acls", "client", "--user", "desk"]).output
    monkeypatch.setenv("RUNFOLD_ENCRYPTION_KEY", f"file:{tmp_path / 'key'}")
    sealing = CliRunner().invoke(app, ["acls", "client", "--user", "desk"]).output

    further = set(sealing.splitlines()) - set(plain.splitlines())
    assert [line for line in further if "--operation Write" in line and "--topic runfold.keys " in line]
    assert len(further) == 1
    [keys] = [line for line in plain.splitlines() if "runfold.keys" in line]
    assert keys.count("--operation") == keys.count("--operation Describe") == 1


def test_the_command_takes_addresses_and_names_from_the_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RUNFOLD_KAFKA", "broker:9092")
    monkeypatch.setenv("RUNFOLD_PREFIX", "acme")
    shown = CliRunner().invoke(app, ["acls", "producer", "--user", "travel", "--runs", "travel-"])

    assert shown.output == (
        "kafka-acls.sh --bootstrap-server broker:9092 --add --allow-principal User:travel --operation Write"
        " --operation Describe --topic acme.run.travel- --resource-pattern-type prefixed\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [["producer"], ["producer", "--runs", ""], ["client", "--runs", "travel-"], ["service", "--runs", ""]],
)
def test_runs_are_given_for_a_producer_and_for_no_other(arguments: list[str]):
    refused = CliRunner().invoke(app, ["acls", *arguments, "--user", "u"])

    assert refused.exit_code == 2
    assert "--runs" in refused.output


@pytest.mark.parametrize("runs", ["m", "memories-", "memories-0", "0", "01a2"])
def test_a_producer_gets_no_runs_whose_ids_runfold_makes(runs: str):
    refused = CliRunner().invoke(app, ["acls", "producer", "--user", "u", "--runs", runs])

    assert refused.exit_code == 2
    assert "beginning of an id" in refused.output


@pytest.mark.parametrize("runs", ["mem-", "memoirs", "travel-", "0x", "1"])
def test_a_producer_gets_runs_that_only_look_like_them(runs: str):
    assert CliRunner().invoke(app, ["acls", "producer", "--user", "u", "--runs", runs]).exit_code == 0
