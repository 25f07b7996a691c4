"""The annotations of OpenAI's two formats as citations in the common form."""

from collections.abc import Iterable, Iterator
from typing import Any

from runfold_projections.providers.values import get
from runfold_schemas.messages import Citation
from runfold_schemas.whole_texts import whole


def citations(annotations: Iterable[Any]) -> Iterator[Citation]:
    """The citations among annotations: of pages and of files. Chat Completions puts the members of
    a page into a member of their own. A link to a generated file is no citation. Some servers give
    URLs alone.
    """
    for annotation in annotations:
        source = {"url": annotation} if isinstance(annotation, str) else annotation
        source = get(source, "url_citation") or source
        fields: dict[str, Any] = {
            "url": _text(get(source, "url")),
            "title": _text(get(source, "title", "filename")),
            "start": _count(get(source, "start_index")),
            "end": _count(get(source, "end_index")),
        }
        present = {name: value for name, value in fields.items() if value is not None}
        if "url" in present or "title" in present:
            yield Citation(**present)


def _text(value: Any) -> str | None:
    return whole(value) if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**63 else None
