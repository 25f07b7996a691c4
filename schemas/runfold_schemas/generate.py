"""Writes the files of the contract beside the package: `python -m runfold_schemas.generate`. With
`--check` it only compares them.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from runfold_schemas.asyncapi import EVENT_SCHEMA_FILE, asyncapi
from runfold_schemas.events import AnyEvent

FOLDER: Final = Path(__file__).parents[1]


def main(arguments: Sequence[str]) -> int:
    """Generates or checks the files. Returns the exit code: 1 if a checked file is not current."""
    if arguments == ["--check"]:
        return _report(stale_files())
    if arguments:
        sys.stderr.write("usage: python -m runfold_schemas.generate [--check]\n")
        return 2
    for name, text in generated_files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def generated_files() -> dict[str, str]:
    """The text of each file, by the name of the file."""
    documents = {EVENT_SCHEMA_FILE: event_schema(), "asyncapi.json": asyncapi()}
    return {name: json.dumps(each, indent=2, ensure_ascii=False) + "\n" for name, each in documents.items()}


def stale_files(folder: Path = FOLDER) -> list[Path]:
    """The files that are missing, or whose text is not the generated text."""
    paths = {folder / name: text for name, text in generated_files().items()}
    return [
        path for path, text in paths.items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def event_schema() -> dict[str, Any]:
    """The JSON Schema of a record's value: an event of any kind."""
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": "urn:runfold:event:1",
        "title": "Event",
        "description": "The value of a record on a run's topic: one event, by its type.",
        **event_adapter().json_schema(schema_generator=_FieldsWithoutTitles),
    }


def event_adapter() -> TypeAdapter[AnyEvent]:
    return TypeAdapter(Annotated[AnyEvent, Field(discriminator="type")])


class _FieldsWithoutTitles(GenerateJsonSchema):
    """Leaves out the titles of fields, because they repeat the fields' names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  # the answer is the same for all
        return False


def _report(stale: Sequence[Path]) -> int:
    for path in stale:
        sys.stderr.write(f"{path} is not current: run `python -m runfold_schemas.generate`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
