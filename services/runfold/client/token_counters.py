"""Chooses the counter of tokens for a provider: the provider's own, if it works offline, and an
estimate otherwise.

OpenAI's is `tiktoken`. It is used if it is installed and if the file of the vocabulary is in its
cache, because nothing is downloaded here. Anthropic and Gemini count over the network only.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from runfold_projections.message_tokens import ESTIMATE, TokenCounter
from runfold_projections.providers import EncodeOptions
from runfold_schemas.data import maker_name
from runfold_schemas.messages import Provider

_OPENAI_FORMATS: Final = frozenset({"openai-chat", "openai-responses"})
_OPENAI_MAKER: Final = re.compile(r"openai|api\.openai\.com|.*\.openai\.azure\.com", re.IGNORECASE)
_OPENAI_MODEL: Final = re.compile(r"(ft:)?(gpt-|chatgpt-|o\d|codex-|computer-use)", re.IGNORECASE)
_NEWEST: Final = "o200k_base"

_URL: Final = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
"""By this address `tiktoken` names the file in its cache."""

_COUNTS_MAX: Final = 100_000


def counter_for(provider: Provider, options: EncodeOptions, maker: str | None) -> TokenCounter:
    """The counter for requests to the provider and the maker. Reads files, and takes a second for a
    vocabulary that this process has not read yet.
    """
    model = options.get("model")
    if provider not in _OPENAI_FORMATS or (maker and not _OPENAI_MAKER.fullmatch(maker_name(maker))):
        return ESTIMATE
    if model and not _OPENAI_MODEL.match(model):
        return ESTIMATE
    return _tiktoken(_vocabulary_of(model), _cache_folder()) or ESTIMATE


def _vocabulary_of(model: str | None) -> str:
    try:
        from tiktoken.model import encoding_name_for_model  # noqa: PLC0415  # installed or not

        return encoding_name_for_model(model) if model else _NEWEST
    except (ImportError, KeyError):
        return _NEWEST


def _cache_folder() -> str:
    """As `tiktoken` finds it; "" if it keeps no files."""
    for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if name in os.environ:
            return os.environ[name]
    return os.path.join(tempfile.gettempdir(), "data-gym-cache")  # noqa: PTH118  # joined as tiktoken joins it


def _tiktoken(vocabulary: str, folder: str) -> TokenCounter | None:
    file = Path(folder) / hashlib.sha1(_URL.format(vocabulary).encode()).hexdigest()  # noqa: S324  # a name
    return _load(vocabulary) if folder and file.is_file() else None


@cache
def _load(vocabulary: str) -> TokenCounter | None:
    try:
        import tiktoken  # noqa: PLC0415  # installed or not

        encoding = tiktoken.get_encoding(vocabulary)
    except (ImportError, OSError, ValueError):
        return None
    return TokenCounter(f"tiktoken ({vocabulary})", remembered(encoding.encode_ordinary))


def remembered(encode: Callable[[str], Any]) -> Callable[[str], int]:
    """Counts each text once, because every request of a run repeats the texts of the request
    before. Keeps the hash and the length of a text instead of the text.
    """
    counts: dict[tuple[int, int], int] = {}

    def count(text: str) -> int:
        key = (hash(text), len(text))
        if key not in counts:
            if len(counts) >= _COUNTS_MAX:
                counts.clear()
            counts[key] = len(encode(text))
        return counts[key]

    return count
