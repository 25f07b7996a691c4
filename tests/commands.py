"""Commands of Runfold as processes of their own."""

from subprocess import PIPE, STDOUT

from tests.forking import runfold_process
from tests.processes import environment, projections

from runfold.settings import Settings
from runfold.verify.runs import Difference, verify


async def command(settings: Settings, *arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what it prints."""
    variables = environment(settings) | {"PATH": ""}
    process = await runfold_process(*arguments, env=variables, stdout=PIPE, stderr=STDOUT)
    printed, _ = await process.communicate()
    output = printed.decode()
    print(" ".join(arguments), process.returncode, output)
    assert process.returncode is not None
    assert "Traceback" not in output
    return process.returncode, output


async def run_command(settings: Settings, *arguments: str) -> int:
    """The exit code of a command."""
    code, _ = await command(settings, *arguments)
    return code


async def differences_of(settings: Settings, run_id: str) -> list[Difference]:
    """What `verify` finds in one run, without waiting."""
    async with projections(settings) as stored:
        compared = verify(settings.log(), stored.stores, run_id=run_id, wait_seconds=0)
        return [each async for _, found in compared for each in found]
