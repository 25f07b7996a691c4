"""The sources of a text of Gemini, in the common form of citations."""

from typing import Any

from runfold_schemas.messages import Citation


class Sources:
    """The sources that the chunks of a response name: pages that the answer rests on, and texts
    that it repeats.
    """

    def __init__(self) -> None:
        self.licensed: list[dict[str, Any]] = []
        """The citations of repeated texts, each as Gemini sent it."""
        self._chunks: list[Any] = []
        self._supports: list[Any] = []

    def add(self, citations: Any, grounding: Any) -> bool:
        """Adds both kinds of metadata in the REST form. Returns whether there are any."""
        new = _objects(_member(citations, "citations"))
        self.licensed += [each for each in new if each not in self.licensed]
        # Each chunk has all of them so far.
        self._chunks = _list(_member(grounding, "groundingChunks")) or self._chunks
        self._supports = _objects(_member(grounding, "groundingSupports")) or self._supports
        return bool(self.licensed or self._supports)

    def citations(self, text: str) -> list[Citation]:
        """The citations in this text. Gemini counts bytes, and a citation counts characters."""
        cited = [
            Citation(**_place(text, each), **_words(url=each.get("uri"), title=each.get("title")))
            for each in self.licensed
        ]
        for support in self._supports:
            segment = support.get("segment")
            place = _place(text, segment) if isinstance(segment, dict) else {}
            cited += [Citation(**place, **_source(chunk)) for chunk in self._chunks_of(support)]
        return cited

    def _chunks_of(self, support: dict[str, Any]) -> list[Any]:
        indices = _list(support.get("groundingChunkIndices"))
        return [
            self._chunks[index]
            for index in indices
            if isinstance(index, int) and 0 <= index < len(self._chunks)
        ]


def _source(chunk: Any) -> dict[str, Any]:
    """The address and the title of a page, a document or a place, of whichever kind it is."""
    for source in chunk.values() if isinstance(chunk, dict) else ():
        if isinstance(source, dict):
            return _words(url=source.get("uri"), title=source.get("title"), cited_text=source.get("text"))
    return {}


def _place(text: str, segment: dict[str, Any]) -> dict[str, int]:
    begin, end = segment.get("startIndex") or 0, segment.get("endIndex")
    data = text.encode()
    if not isinstance(begin, int) or not isinstance(end, int) or not 0 <= begin < end <= len(data):
        return {}
    try:
        return {"start": len(data[:begin].decode()), "end": len(data[:end].decode())}
    except UnicodeDecodeError:  # within a character
        return {}


def _words(**members: Any) -> dict[str, str]:
    return {name: member for name, member in members.items() if isinstance(member, str) and member}


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in _list(value) if isinstance(each, dict)]
