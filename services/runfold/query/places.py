"""The places for followers of runs, which all tenants of a service share."""

from collections import Counter
from typing import Final

from runfold.http.limit_log import LimitLog
from runfold_schemas.errors import UnavailableError


class Places:
    """As many places as `limit`. While there are several holders, each may have as many places as
    are free: so a single one takes half of them at most, and others always find some.
    """

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._limit_log = LimitLog("followers", limit, setting="RUNFOLD_FOLLOWERS_MAX")
        self._taken: Counter[object] = Counter()

    def join(self, holder: object) -> None:
        self._taken[holder] = 0

    def leave(self, holder: object) -> None:
        del self._taken[holder]

    def check_room(self, holder: object) -> None:
        """Raises `UnavailableError` if the holder gets no further place now."""
        free = self._limit - self._taken.total()
        if free <= 0:
            self._limit_log.refused()
            reason = f"there are {self._limit:,} already, as many as RUNFOLD_FOLLOWERS_MAX allows"
        elif len(self._taken) > 1 and self._taken[holder] >= free:
            reason = f"this tenant has {self._taken[holder]:,} already, and no more are free for others"
        else:
            return
        raise UnavailableError("A place for another follower", reason=reason)

    def take(self, holder: object) -> None:
        self._taken[holder] += 1

    def give_back(self, holder: object) -> None:
        # A stream may end after its holder has left.
        if holder in self._taken:
            self._taken[holder] -= 1
        self._limit_log.look(self._taken.total())
