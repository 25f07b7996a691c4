"""The note about a rebuild: the rebuild goes on if the note cannot be written."""

import pytest

from runfold.projector.rebuild import RebuildNote


class Refusing:
    """A database that refuses every write with an error of its own."""

    def __getitem__(self, name: str) -> "Refusing":
        return self

    async def update_one(self, *args: object, **options: object) -> None:
        raise PermissionError("not authorized on jobs")


async def test_an_error_of_a_note_is_logged_only(caplog: pytest.LogCaptureFixture):
    note = RebuildNote(Refusing(), "runfold", "e-2")  # type: ignore[arg-type]

    await note.go_on(1, 2)
    await note.end(is_switched=False)

    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == 2
    assert all("not authorized on jobs" in line for line in lines)
