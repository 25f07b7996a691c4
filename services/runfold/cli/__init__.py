"""The command line. Each command is a module; `program` has what they share: the settings and the
errors.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from runfold.cli.garbage import uncollected_imports

_OUR_PACKAGES: Final = ("runfold", "runfold_projections", "runfold_schemas")


def main() -> None:
    """Runs the command line. The packages that it needs are not among those that agents install; if
    one is missing, a line says how to install them, and the exit code is 1.
    """
    with explain_missing_package(), uncollected_imports():
        from runfold.cli.program import run_program  # noqa: PLC0415
    run_program()


@contextmanager
def explain_missing_package() -> Iterator[None]:
    """For imports alone: what a running service misses has another remedy, and needs its
    traceback.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in _OUR_PACKAGES:
            raise
        print(  # noqa: T201  # rich may be what is missing
            f"error: the command line needs the package {package!r}: run pip install 'runfold[server]'",
            file=sys.stderr,
        )
        sys.exit(1)


__all__ = ["explain_missing_package", "main"]
