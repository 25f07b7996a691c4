"""Writes docs/provider-cases.md: how many cases of the corpus pass, by provider and kind.

`python -m tests.providers.table` writes the page. With `--check` it only compares, and fails if the
page is not current or if a case does not pass.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Final

from tests.providers.corpus import Found, assert_as_expected, corpus

from runfold_schemas.messages import PROVIDERS

PAGE: Final = Path(__file__).parents[2] / "docs" / "provider-cases.md"

HEAD: Final = """# Cases of providers

Each case is a response of a provider, whole or as a stream, with the request that must follow it. A
test records the response as JSON and as an object of the provider's own package, folds the events,
and compares the request, which the package's types must accept. Each stream is cut behind each of
its chunks too, and the request of the repaired ledger must be accepted by all five providers. That
request has `lossy="drop"`, because a provider may have no form for a part of another one.
[The corpus](../tests/providers/README.md) has the files and says how to add one.

`python -m tests.providers.table` writes this page, and `make check` fails if a case does not pass.
"""

_TEXT_MAX: Final = 1_000


def main(arguments: Sequence[str]) -> int:
    """Writes or checks the page. Returns the exit code."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m tests.providers.table [--check]\n")
        return 2
    failures = {str(found): why for found in corpus() if (why := failure(found))}
    for name, why in failures.items():
        sys.stderr.write(f"{name}: {why}\n")
    text = page(failures)
    if not arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text
    if stale:
        sys.stderr.write(f"{PAGE} is not current: run `python -m tests.providers.table`\n")
    return 1 if failures or stale else 0


def failure(found: Found) -> str | None:
    """The first way in which the case does not pass, and why."""
    for way in found.ways():
        try:
            assert_as_expected(found, way)
        except Exception as error:  # noqa: BLE001  # whatever is raised, the case does not pass
            return f"{way}: {type(error).__name__}: {str(error)[:_TEXT_MAX]}"
    return None


def page(failures: Iterable[str]) -> str:
    """The whole page."""
    failed = set(failures)
    kinds = sorted({found.case.kind for found in corpus()})
    rows = [(kind, [found for found in corpus() if found.case.kind == kind]) for kind in kinds]
    lines = [
        f"| kind | {' | '.join(PROVIDERS)} | all |",
        f"| --- |{' --- |' * (len(PROVIDERS) + 1)}",
        *(_row(kind, cases) for kind, cases in [*rows, ("all", list(corpus()))]),
        _row("passed", [found for found in corpus() if str(found) not in failed]),
    ]
    streams = sum(found.case.chunks is not None for found in corpus())
    whole = sum(found.case.response is not None for found in corpus())
    count = f"{len(corpus())} cases have {whole} whole responses and {streams} streams."
    makers = sorted({found.case.maker for found in corpus() if found.case.maker})
    named = fill(f"Cases name these makers and servers: {', '.join(makers)}.", width=100)
    return "\n".join([HEAD, *lines, "", count, named, ""])


def _row(kind: str, cases: Sequence[Found]) -> str:
    counts = Counter(found.provider for found in cases)
    cells = [str(counts[provider] or "") for provider in PROVIDERS]
    return f"| {kind} | {' | '.join([*cells, str(len(cases))])} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
