"""Finds names in bytes, whatever form they have there: in JSON, in a joined id, in a path, in the
name of a topic.
"""

import json
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from runfold_schemas.sessions import joined
from runfold_schemas.topics import escape

_IDS: Final = re.compile(rb"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")
"""UUIDs, with and without hyphens."""


class Names:
    """The names to look for."""

    def __init__(self, names: Iterable[str]) -> None:
        known = {name for name in names if name}
        ids = {name for name in known if _IDS.fullmatch(name.encode(errors="surrogatepass"))}
        # There may be many ids, and a set finds them faster than a pattern.
        self._ids = {name.replace("-", "").encode() for name in ids}
        forms = {form for name in known - ids for form in _forms(name)}
        listed = b"|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        self._pattern = re.compile(b"(?<![0-9A-Za-z])(?:%b)(?![0-9A-Za-z])" % listed) if forms else None

    def find(self, text: bytes) -> str | None:
        """The first of the names in a text."""
        if self._pattern is not None and (match := self._pattern.search(text)):
            return match[0].decode(errors="replace")
        for match in _IDS.finditer(text):
            if match[0].replace(b"-", b"") in self._ids:
                return match[0].decode()
        return None


def _forms(name: str) -> set[bytes]:
    texts = {
        name,
        json.dumps(name)[1:-1],
        json.dumps(name, ensure_ascii=False)[1:-1],
        joined(name),
        json.dumps(joined(name), ensure_ascii=False)[1:-1],
        quote(name, safe=""),
    }
    return {*(text.encode(errors="surrogatepass") for text in texts), escape(name).encode()}
