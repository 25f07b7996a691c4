"""Signed trees: what a signer says of the heads of logs, as one record of the topic of evidence."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import BaseModel, ConfigDict, ValidationError

from runfold_projections.merkle import root_of
from runfold_schemas.topics import Partition

LEAVES_MAX: Final = 10_000
"""The number of leaves in one tree, so that it fits into a record."""


class Leaf(NamedTuple):
    """The head of a log's chain, which stands for all its records before `next_offset`."""

    at: Partition
    next_offset: int
    head: bytes

    @property
    def text(self) -> str:
        return f"{self.at.topic} {self.at.partition} {self.next_offset} {self.head.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The leaf of a text. Raises `ValueError`."""
        topic, partition, next_offset, head = text.split(" ")
        leaf = cls(Partition(topic, int(partition)), int(next_offset), bytes.fromhex(head))
        if leaf.text != text:
            raise ValueError(f"{text!r} is no leaf")
        return leaf


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Before(_Model):
    """The head of the topic of evidence itself, before the record with this statement."""

    offset: int
    head: str


class Statement(_Model):
    """What is signed."""

    format: Literal["runfold-evidence-1"] = "runfold-evidence-1"
    prefix: str
    time: str
    before: Before
    leaves: int
    root: str
    public_key: str


class SignedTree(_Model):
    """A statement, its signature and the leaves of its tree."""

    statement: str
    """The JSON text of a `Statement`, which is signed as it is."""
    signature: str
    leaves: tuple[str, ...]


def sign(key: Ed25519PrivateKey, leaves: Sequence[Leaf], *, prefix: str, before: Before) -> SignedTree:
    texts = tuple(leaf.text for leaf in leaves)
    statement = Statement(
        prefix=prefix,
        time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        before=before,
        leaves=len(texts),
        root=root_of([text.encode() for text in texts]).hex(),
        public_key=key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex(),
    ).model_dump_json()
    return SignedTree(statement=statement, signature=key.sign(statement.encode()).hex(), leaves=texts)


class CheckedTree(NamedTuple):
    """A signed tree whose signature and root are right."""

    tree: SignedTree
    statement: Statement
    leaves: list[Leaf]


class ForgedTreeError(ValueError):
    """A record is no tree that a trusted key has signed."""


def check(value: bytes | None, *, prefix: str, trusted: Collection[str]) -> CheckedTree:
    """The signed tree of a record. Raises `ForgedTreeError`."""
    try:
        tree = SignedTree.model_validate_json(value or b"")
        statement = Statement.model_validate_json(tree.statement)
        leaves = [Leaf.parse(text) for text in tree.leaves]
    except (ValidationError, ValueError) as error:
        raise ForgedTreeError("it is no signed tree") from error
    if statement.public_key not in trusted:
        raise ForgedTreeError(f"its key {statement.public_key} is not trusted")
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(statement.public_key))
        public.verify(bytes.fromhex(tree.signature), tree.statement.encode())
    except (InvalidSignature, ValueError) as error:
        raise ForgedTreeError("its signature is wrong") from error
    if statement.prefix != prefix:
        raise ForgedTreeError(f"it is of the prefix {statement.prefix!r}")
    texts = [text.encode() for text in tree.leaves]
    if len(texts) != statement.leaves or not texts or root_of(texts).hex() != statement.root:
        raise ForgedTreeError("its leaves are not those that were signed")
    return CheckedTree(tree, statement, leaves)
