"""The citations of Anthropic and of Bedrock in the common form. Both cite for a whole block."""

from collections.abc import Iterable, Iterator
from typing import Any

from runfold_projections.providers.values import get
from runfold_schemas.messages import Citation
from runfold_schemas.whole_texts import whole


def anthropic_citations(citations: Iterable[Any]) -> Iterator[Citation]:
    """The citations of a text of Messages: of a document, of a search result or of a page."""
    for citation in citations:
        yield from _citation(
            url=get(citation, "url") or _url(get(citation, "source")),
            title=get(citation, "title", "document_title"),
            cited_text=get(citation, "cited_text"),
        )


def bedrock_citations(citations: Iterable[Any]) -> Iterator[Citation]:
    """The citations of a text of Converse."""
    for citation in citations:
        quoted = get(citation, "sourceContent")
        texts = [get(source, "text") for source in quoted] if isinstance(quoted, list) else []
        yield from _citation(
            url=get(get(get(citation, "location"), "web"), "url") or _url(get(citation, "source")),
            title=get(citation, "title"),
            cited_text="".join(text for text in texts if isinstance(text, str)),
        )


def _citation(**members: Any) -> Iterator[Citation]:
    fields = {name: whole(text) for name, text in members.items() if isinstance(text, str) and text}
    if fields:
        yield Citation(**fields)


def _url(source: Any) -> str | None:
    """The source of a search result, if it is a URL. The caller of the API may name it freely."""
    return source if isinstance(source, str) and source.startswith(("https://", "http://")) else None
