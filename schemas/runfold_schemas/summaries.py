"""A summary that stands for the beginning of a conversation."""

from typing import Annotated

from pydantic import Field

from runfold_schemas.data import Count, Data


class Summary(Data):
    """A summary of the ledger before `end_offset`, which the agent made. The ledger stays whole. A
    ledger that is fitted to a budget has the summary instead of the messages that it covers. Of
    several summaries, the one that covers most counts, and of equals the last. An `end_offset`
    after the summary's own event is wrong: such a summary covers what precedes its event, and
    counts only if there is no other.
    """

    text: Annotated[str, Field(min_length=1)]
    end_offset: Count
