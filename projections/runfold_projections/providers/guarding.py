"""Recorders that raise nothing into the stream of the caller."""

from collections.abc import Sequence
from typing import Any

from runfold_projections.providers.recording import Recorder
from runfold_schemas.data import Data


class GuardedRecorder:
    """Makes a fault of an error in a recorder, because the error would end the caller's stream."""

    def __init__(self, guarded: Recorder) -> None:
        self.blocks = guarded.blocks
        self._recorder = guarded

    def response(self, response: Any) -> Sequence[Data]:
        try:
            return self._recorder.response(response)
        except Exception as error:  # noqa: BLE001  # objects of the caller may raise anything
            self._report(response, error)
            return self.blocks.end(finished=False)

    def feed(self, chunk: Any) -> Sequence[Data]:
        try:
            return self._recorder.feed(chunk)
        except Exception as error:  # noqa: BLE001  # objects of the caller may raise anything
            self._report(chunk, error)
            return self.blocks.take()

    def _report(self, value: Any, error: Exception) -> None:
        self.blocks.fault(f"a {type(value).__name__} could not be read: {type(error).__name__}")
