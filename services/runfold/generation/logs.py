"""The logs of generations. They are runs like others, except for who forwards changes from them.

If two processes answer a trigger, one answer counts. So the changes of an answer are forwarded by
`Answers`, which has read the answer that counts, and not by each publisher as in other runs. An
`Appender` does not forward.
"""

from typing import Final

from runfold.client.appender import Appender
from runfold.client.runfold import Runfold

KIND: Final = "runfold.generation"
"""The label of runs that are the log of a generation."""


async def open_log(runfold: Runfold, *, bank_id: str, run_id: str, kind: str) -> Appender:
    """Opens the log with that id, which may exist already, to append to it."""
    run = await runfold.open_run(agent_id=bank_id, run_id=run_id, labels={KIND: kind})
    return runfold.connection.appender_of(run.life, is_new=run.is_new)
