"""The names by which lists are restricted and sorted, for clients, services and the store alike."""

from typing import Literal

from runfold_schemas.runs import Status

ShownStatus = Literal[Status, "open"]
"""A status, or `open`: a session's own run that is running, which it does until the session
ends.
"""

RunSort = Literal["started", "updated", "ended", "duration", "tokens"]
"""The order of a list of runs."""

QuarantineKind = Literal["run", "key", "record"]
"""The kind of an entry of the quarantine. A `record` belongs to neither of the others."""
