"""The logs of generations, which are runs like all others, but for who tells what they change.

Of two answers to a trigger one stands. So what an answer changes is told by who has seen which one
that is (`Answers`), and not, as with other runs, by everybody who publishes one.
"""

from typing import Final

from runfold.client.run import Run
from runfold.client.runfold import Runfold
from runfold_schemas.catalog import Life

KIND: Final = "runfold.generation"
"""The label of runs that are the log of a generation."""


async def open_log(runfold: Runfold, *, bank_id: str, run_id: str, kind: str) -> Run:
    """Opens the log of that id, or takes it up."""
    run = await runfold.open_run(agent_id=bank_id, run_id=run_id, labels={KIND: kind})
    return log_of(runfold, run.life, is_new=run.is_new)


def log_of(runfold: Runfold, life: Life, *, is_new: bool = False) -> Run:
    """The log of a life that is known already; `is_new` where it was opened here, and nothing else
    was published to it.
    """
    return runfold.connection.run_of(life, is_new=is_new, forwards=False)
