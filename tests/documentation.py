"""Pages of documentation as programs: their blocks of code, which run in the order of the page.

A block in `sh` runs in bash, and the next one has its variables. A block in `python` has the names
of those before it, and may use `await` at its top, as in `python -m asyncio`. A `text` or `json`
block shows the output of the block before it. The comment `<!-- not run: NAME -->` before a block
says that no test can run it, and `NOT_RUN` in the test gives the reason. A block in `js` needs this
comment. A block without a language is a drawing.
"""

import ast
import asyncio
import gc
import inspect
import io
import json
import re
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

RUN_LANGUAGES: Final = {"python", "sh"}
OUTPUT_LANGUAGES: Final = {"json", "text"}

_NOT_RUN: Final = re.compile(r"<!-- not run: (\S+) -->")
_BLOCK_SECONDS: Final = 240

_CHANGING: Final = [
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"\b[0-9a-f]{32}\b", "ID"),
    (r"\b\d{4}-\d\d-\d\dT[\d:.]+Z?(\+00:00)?", "TIME"),
    (r"\b(\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\b", "TIME"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{1,4})*\b", "BEGINNING OF AN ID"),
    (r"\b0?\.\d{4,}\b", "FRACTION"),
    (r"\b\d+(\.\d+)? s\b", "SECONDS"),
    (r"[ \t]+", " "),
]
"""What differs from one run to the next, and the widths of columns with it."""


@dataclass(frozen=True)
class Block:
    """A block of code to run. `line` is that of its first line of code, counted from 1."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None = None
    output_language: str | None = None
    output: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Raises `ValueError` for a block of a language that is not known here, and for an output of
    nothing.
    """
    blocks: list[Block] = []
    not_run: str | None = None
    for token in MarkdownIt("commonmark").parse(page.read_text()):
        if token.type == "html_block" and (found := _NOT_RUN.match(token.content)):
            not_run = found[1]
        elif token.type == "fence" and token.info:
            assert token.map is not None
            line = token.map[0] + 2
            if token.info in RUN_LANGUAGES or (token.info == "js" and not_run is not None):
                blocks.append(Block(page, line, token.info, token.content, not_run))
            elif token.info in OUTPUT_LANGUAGES and blocks and blocks[-1].output is None:
                before = blocks.pop()
                shown = {"output_language": token.info, "output": token.content}
                blocks.append(Block(**{**vars(before), **shown}))
            else:
                raise ValueError(f"{page.name}:{line}: a {token.info} block that shows no block's output")
            not_run = None
    return blocks


class Story:
    """A page as it runs. Use it as an async context manager.

    Args:
        folder: where commands run.
        variables: the environment of commands.
        replacements: texts of the page, an address for example, and what stands for them here.
    """

    def __init__(
        self, *, folder: Path, variables: Mapping[str, str], replacements: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._variables = dict(variables)
        self._replacements = replacements
        self._names: dict[str, Any] = {"__name__": "__main__"}
        # One thread with one event loop: what a block has opened, the next one uses.
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._runner = asyncio.Runner()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def run(self, block: Block) -> str:
        """The output of the block. Fails with its place in the page."""
        run = self._sh if block.language == "sh" else self._python
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, run, block)
        except Exception as error:
            error.add_note(f"in the block at {block.place}")
            raise

    def _sh(self, block: Block) -> str:
        kept = self._folder / ".variables"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{self._replaced(block.text)}\nenv -0 > {kept}"],
            cwd=self._folder,
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_BLOCK_SECONDS,
        )
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout}\n{done.stderr}"
        pairs = (pair.partition("=") for pair in kept.read_text().split("\0") if pair)
        self._variables = {name: value for name, _, value in pairs}
        return done.stdout

    def _python(self, block: Block) -> str:
        lines_before = "\n" * (block.line - 1)
        code = compile(
            lines_before + self._replaced(block.text),
            str(block.page),
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
        with redirect_stdout(io.StringIO()) as output:
            if code.co_flags & inspect.CO_COROUTINE:
                self._runner.run(eval(code, self._names))
            else:
                exec(code, self._names)
        return output.getvalue()

    def _close(self) -> None:
        """Ends the loop, and frees what the page has left open: the clients of other packages,
        which its reader need not close to understand the page.
        """
        self._names.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
            self._runner.close()
            gc.collect()

    def _replaced(self, text: str) -> str:
        for shown, here in self._replacements.items():
            text = text.replace(shown, here)
        return text


def check_output(block: Block, output: str) -> None:
    """The page shows what came out. `...` stands for anything; ids and times only have to look
    alike.
    """
    assert block.output is not None
    if block.output_language == "json":
        assert _alike(json.loads(output)) == _alike(json.loads(block.output)), block.place
        return
    shown, actual = _alike(block.output.strip()), _alike(output.strip())
    pattern = ".*?".join(re.escape(part) for part in shown.split("..."))
    assert re.fullmatch(pattern, actual, flags=re.DOTALL), (
        f"{block.place} shows\n{block.output}\nbut the output is\n{output}"
    )


def _alike(value: Any) -> Any:
    """The value without what differs from one run to the next."""
    match value:
        case dict():
            return {key: _alike(item) for key, item in value.items()}
        case list():
            return [_alike(item) for item in value]
        case str():
            for pattern, name in _CHANGING:
                value = re.sub(pattern, name, value)
            return "\n".join(line.strip() for line in value.splitlines())
    return value


def markers() -> Iterator[tuple[str, str]]:
    """The page and the name of each block that is not run."""
    for page in PAGES:
        for block in blocks_of(page):
            if block.not_run is not None:
                yield page.name, block.not_run
