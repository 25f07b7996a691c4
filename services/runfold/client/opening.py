"""What opening a run and forking one share: of several clients, one gets an id."""

from runfold.client.connection import LogConnection
from runfold_schemas.catalog import Life
from runfold_schemas.errors import InvalidIdError, RunConflictError


async def first_life(connection: LogConnection, opened: Life) -> Life:
    """The life that comes first in the catalog. The topic of `opened` is deleted if another life
    does.
    """
    first = await connection.catalog.lookup(opened.run_id)
    if first is None or first.log_id == opened.log_id:
        return opened
    lost = connection.topics.run(opened.run_id, opened.log_id)
    await connection.delete_topic(lost)
    return first


def check_owner(life: Life, *, agent_id: str, session_id: str | None) -> None:
    """Raises `InvalidIdError` if the run was deleted, and `RunConflictError` if it belongs to
    another agent or session.
    """
    if life.deleted:
        raise InvalidIdError(
            f"run {life.run_id!r} was deleted, and its id is not used again: choose another id",
            name="run_id",
            value=life.run_id,
        )
    if life.agent_id != agent_id or session_id not in (None, life.session_id):
        raise RunConflictError(life.run_id, agent_id=life.agent_id, session_id=life.session_id)
