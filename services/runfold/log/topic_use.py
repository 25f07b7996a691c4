"""Which topics a producer still needs to know.

A producer asks for the metadata of every topic that it knows whenever it gets to know another one.
So with each run that a process opens, opening a run would take longer, in the process and in the
broker.
"""

import time
from collections import Counter
from collections.abc import Callable

IDLE_SECONDS = 300.0
"""How long a topic is kept after its last record. Kafka's own producer takes this time too."""

LOOK_SECONDS = 10.0
"""How often the noted topics are looked through for idle ones."""


class TopicUse:
    """Notes which topics are written to."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used_at: dict[str, float] = {}
        self._writing: Counter[str] = Counter()
        self._finished: set[str] = set()
        self._looked_at = clock()

    def begin(self, topic: str) -> None:
        """A record of `topic` is on its way."""
        self._writing[topic] += 1
        self._used_at[topic] = self._clock()
        self._finished.discard(topic)

    def end(self, topic: str) -> None:
        """The record has arrived, or has failed."""
        self._writing[topic] -= 1
        if not self._writing[topic]:
            del self._writing[topic]

    def is_writing(self, topic: str) -> bool:
        """Whether a record of the topic is on its way."""
        return topic in self._writing

    def writing(self) -> set[str]:
        """The topics with records on their way."""
        return set(self._writing)

    def finish(self, topic: str) -> None:
        """No more records of `topic` are expected. A later record is no error."""
        self._finished.add(topic)

    def unneeded(self) -> set[str]:
        """The topics that can be forgotten, each once. A topic with records on their way is never
        among them, because its leader must stay known.
        """
        now = self._clock()
        topics = self._finished - self._writing.keys()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            topics |= {topic for topic, at in self._used_at.items() if now - at >= IDLE_SECONDS}
            topics -= self._writing.keys()
        self._finished -= topics
        for topic in topics:
            self._used_at.pop(topic, None)
        return topics
