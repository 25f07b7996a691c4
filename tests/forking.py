"""Commands and services of Runfold as processes that import nothing: each is forked from a process
that has imported Runfold. The imports take a second of a processor, and the tests start hundreds of
processes.

Such a process has its own id, session, environment, streams and exit code, and signals end it as
they end any other. Tests of the start itself run `python -m runfold.cli`.
"""

import asyncio
import atexit
import ctypes
import functools
import multiprocessing
import os
import pkgutil
import resource
import runpy
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import IO

import runfold.cli
from runfold.local import Service
from runfold.local.leash import PR_SET_PDEATHSIG, raise_open_files_limit

_COMMANDS = [each.name for each in pkgutil.iter_modules(runfold.cli.__path__) if each.name != "__main__"]
_SERVICES = ("api.app", "ingest.app", "projector.service", "query.app", "tracer.service")

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [__name__, *(f"runfold.{name}" for name in _SERVICES), *(f"runfold.cli.{name}" for name in _COMMANDS)]
)

Stream = int | IO[bytes] | None
"""A file, or PIPE or STDOUT as for `asyncio.create_subprocess_exec`. None is the stream of the
tests.
"""


@dataclass
class Forked:
    """A process that was forked, with what tests need of `asyncio.subprocess.Process`."""

    process: BaseProcess
    stdout: asyncio.StreamReader | None
    stderr: asyncio.StreamReader | None
    ended: asyncio.Future[int]

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """As of `subprocess`: negative after a signal, None before the end."""
        return self.process.exitcode

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    async def communicate(self) -> tuple[bytes, bytes]:
        """What it prints to the pipes, until it ends."""
        output, errors = await asyncio.gather(_rest(self.stdout), _rest(self.stderr))
        await self.wait()
        return output, errors

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def runfold_process(
    *arguments: str,
    env: Mapping[str, str],
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
) -> Forked:
    """`runfold` with these arguments, in exactly this environment. Without `stdin` it reads
    nothing.
    """
    program = ["-m", "runfold.cli", *arguments]
    return await forked(program, env=env, stdin=stdin, stdout=stdout, stderr=stderr)


async def forked(
    program: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
) -> Forked:
    """What Python runs with these arguments: `-m` and a module, or a script."""
    await asyncio.wrap_future(_preloaded())
    with ExitStack() as theirs:
        streams = {}
        if stdin is not None:
            streams[0] = _duplicate(theirs, stdin)
        streams[1], printed = _writer(theirs, stdout, default=1)
        streams[2], complained = _writer(theirs, stderr, default=2, same=streams[1])
        arguments = (program, dict(env), streams, Path.cwd())
        process = _context.Process(target=_become, args=arguments, daemon=True)
        process.start()
    await _leads_its_group(process)
    readers = [await _reader(each) if each else None for each in (printed, complained)]
    return Forked(process, *readers, _end(process))


class ForkedService(Service):
    """A service whose process is forked. Its command is that of a Python with Runfold."""

    data_bytes_max: int | None = None
    """What each of its processes may allocate; an allocation beyond it fails."""

    async def _execute(self, argv: Sequence[str], output: IO[bytes]) -> Forked:
        process = await forked(argv[1:], env=os.environ | self.env, stdout=output, stderr=output)
        if (limit := self.data_bytes_max) is not None:
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit, limit))
        return process


def _become(
    program: Sequence[str], env: Mapping[str, str], streams: Mapping[int, Connection], folder: Path
) -> None:
    """Makes the forked process what its arguments say, and runs it to its end."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the fork server dies with the tests
    # It lives as long as anybody holds this pipe, and that has to be the tests alone.
    os.close(forkserver._forkserver._forkserver_alive_fd)
    raise_open_files_limit()
    for number, stream in streams.items():
        os.dup2(stream.fileno(), number)
    for stream in streams.values():
        stream.close()
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(folder)
    is_module = program[0] == "-m"
    name, *arguments = program[is_module:]
    sys.argv = [name, *arguments]
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except Exception:  # noqa: BLE001 - as Python does at the end of a program
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()


@functools.cache
def _preloaded() -> Future[None]:
    """Done when the imports are. A thread waits for them, so that no event loop stands still."""
    return ThreadPoolExecutor(1).submit(_fork_once)


def _fork_once() -> None:
    process = _context.Process(target=time.time)
    process.start()
    process.join()


async def _leads_its_group(process: BaseProcess) -> None:
    """Returns when signals to the group of the process reach it."""
    with suppress(ProcessLookupError):
        while os.getpgid(process.pid) != process.pid:
            await asyncio.sleep(0.002)


def _writer(
    theirs: ExitStack, stream: Stream, *, default: int, same: Connection | None = None
) -> tuple[Connection, Connection | None]:
    """The end of a stream that the process writes to, and the end of a pipe that we read from."""
    if stream == PIPE:
        reader, writer = _context.Pipe(duplex=False)
        return theirs.enter_context(writer), reader
    if stream == STDOUT:
        assert same is not None
        return same, None
    return _duplicate(theirs, default if stream is None else stream), None


def _duplicate(theirs: ExitStack, stream: int | IO[bytes]) -> Connection:
    """A stream in the form in which `multiprocessing` passes it on."""
    number = stream if isinstance(stream, int) else stream.fileno()
    return theirs.enter_context(Connection(os.dup(number)))


async def _reader(pipe: Connection) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    file = os.fdopen(os.dup(pipe.fileno()), "rb", 0)
    pipe.close()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


async def _rest(reader: asyncio.StreamReader | None) -> bytes:
    return await reader.read() if reader else b""


def _end(process: BaseProcess) -> asyncio.Future[int]:
    """Done when the process has ended, with its exit code."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end() -> None:
        loop.remove_reader(process.sentinel)
        process.join()
        if not ended.done():
            ended.set_result(process.exitcode)

    loop.add_reader(process.sentinel, end)
    return ended
