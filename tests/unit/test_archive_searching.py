"""A search finds a name in every file of an archive, whatever the newest version has."""

import shutil
from pathlib import Path

from tests.archived import FENCE, archive_in, segment_of

from runfold.archive.archive import Archive
from runfold.archive.history import remove_history
from runfold.archive.searching import search_files


async def found_in(archive: Archive, text: bytes) -> dict[str, list[str]]:
    """The places that have the text, by the table and the end of the file's name."""
    places: dict[str, list[str]] = {}
    async for searched in search_files(archive, lambda each: "it" if text in each else None):
        for found in searched.found:
            table, _, name = searched.path.partition("/")
            places.setdefault(f"{table} {name.rpartition('.')[2]}", []).append(found.where)
    return {file: sorted(found) for file, found in places.items()}


async def test_a_text_is_found_in_deleted_rows_and_in_orphans_until_the_files_are_removed(tmp_path: Path):
    archive = archive_in(tmp_path)
    await archive.append([segment_of("gone", "secret"), segment_of("kept", "a", "b")], fences=[FENCE])
    assert await found_in(archive, b"secret") == {"events parquet": ["run gone, offset 0"]}
    [file] = (tmp_path / "runfold" / "events").glob("*.parquet")
    shutil.copy(file, file.with_name("part-orphan.zstd.parquet"))
    file.with_name("part-broken.zstd.parquet").write_bytes(b"secret")

    await archive.delete(["gone"])

    places = await found_in(archive, b"secret")
    assert places["events parquet"] == ["run gone, offset 0", "run gone, offset 0", "the file"]
    await remove_history(archive, keep_seconds=0)
    assert await found_in(archive, b"secret") == {}
    assert await found_in(archive, b"gone") == {"deleted_runs parquet": ["run gone", "the file"]}
    kept = await found_in(archive, b"kept")
    assert kept == {"events parquet": ["run kept, offset 0", "run kept, offset 1", "the file"]}
