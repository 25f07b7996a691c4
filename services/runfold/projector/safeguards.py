"""What keeps a worker going when some of its data cannot be folded or stored."""

from typing import NamedTuple, Self

from runfold.projector.dead_letters import HasKeys
from runfold.projector.holding import Holding
from runfold.projector.quarantine import Quarantine
from runfold.projector.skips import Skips
from runfold.projector.suspects import Suspects
from runfold.store.edition import Edition


class Safeguards(NamedTuple):
    quarantine: Quarantine
    skips: Skips
    holding: Holding
    suspects: Suspects

    @classmethod
    def of(cls, stores: Edition, *, dead_seconds: float, has_keys: HasKeys) -> Self:
        """A process is dead if it does not answer for `dead_seconds`. `has_keys` says whether
        clients encrypt.
        """
        holding = Holding(stores.holdings, dead_seconds=dead_seconds)
        quarantine = Quarantine(stores.quarantine, has_keys=has_keys)
        return cls(quarantine, Skips(stores.skips), holding, Suspects())
