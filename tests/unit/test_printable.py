"""Texts from outside do nothing to a terminal, and JSON stays the same value."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from runfold.cli.program import app
from runfold.cli.show import show_ledger
from runfold.cli.terminal import new_console
from runfold.printable import json_line, on_one_line, printable, printable_json, shortened
from runfold_schemas.messages import Message, ThinkingPart

ACTING = "\x1b\x07\x08\r\x0b\x0c\x00\x7f\x9b\x9d\x90\u202e\u2066\u200f\u061c\u2028\ud800\U000e0041"
LONG = "x" * 10_000
CLI = Path(__file__).parents[2] / "services" / "runfold" / "cli"


@given(st.text())
def test_nothing_that_acts_on_a_terminal_is_left(text: str):
    for shown in (printable(text + ACTING), on_one_line(text + ACTING), printable_json(text + ACTING)):
        assert not set(ACTING) & set(shown)
        shown.encode()
    assert not set("\n\t") & set(on_one_line(text))


@given(st.recursive(st.text() | st.integers(), lambda values: st.dictionaries(st.text(), values)))
def test_json_keeps_its_value(value: object):
    assert json.loads(printable_json(json.dumps(value, ensure_ascii=False))) == value


@given(st.lists(st.text("a\n\r\x0b\x0c\x1c\x85\u2028\u2029é漢")), st.sampled_from([None, 1]))
def test_a_line_of_json_is_one_line_for_every_reader(value: list[str], indent: int | None):
    line = json_line(json.dumps(value, ensure_ascii=False, indent=indent).encode())

    assert json.loads(line) == value
    assert len(line.splitlines()) == len(line.decode().splitlines()) == 1


def test_ordinary_texts_stay_as_they_are():
    text = "Füße, 漢字, 👩\u200d💻, न\u200cन, a\tb\nc\u00a0d"

    assert printable(text) == text


def test_a_console_prints_its_own_colors_and_no_codes_of_others(capsys):
    console = new_console()
    console.print(f"[red]{ACTING}[/]", ACTING, style="bold")
    console.print("[bold]:boom:[/]", highlight=False)

    shown = capsys.readouterr().out
    assert not set(ACTING) & set(shown)
    assert "\\x1b" in shown
    assert ":boom:" in shown


@pytest.mark.parametrize("signature", ["", "c2lnbmF0dXJl"])
def test_thinking_has_a_signature_only_if_it_is_signed(signature: str, capsys):
    thinking = ThinkingPart(text="Hm.", signature=signature)

    show_ledger(new_console(), [Message(role="assistant", parts=(thinking,))])

    assert ("signature" in capsys.readouterr().out) == bool(signature)


def test_only_one_module_of_the_commands_opens_a_terminal():
    """`__init__` says which package is missing, `program` prints the version and the settings."""
    writes = re.compile(r"\bConsole\(|(?<!\.)\bprint\(|\bstd(out|err)\b\.|\becho\(")
    found = {path.name for path in CLI.glob("*.py") if writes.search(path.read_text())}

    assert found == {"__init__.py", "program.py", "terminal.py"}


@pytest.mark.parametrize(
    "arguments",
    [[LONG], ["replay", f"--{LONG}"], ["serve", LONG], ["memory", "ls", "--scope", LONG]],
)
def test_an_error_of_usage_quotes_little_of_a_long_argument(arguments: list[str]):
    ended = CliRunner().invoke(app, arguments)

    assert ended.exit_code == 2
    assert "xxx" in ended.output
    assert ended.output.count("x") < 200


def test_an_error_quotes_little_of_a_long_word():
    assert shortened(f"run '{LONG}' does not exist") == f"run '{'x' * 99}… does not exist"
    assert shortened(f"the topic {'t' * 150} is missing") == f"the topic {'t' * 150} is missing"
