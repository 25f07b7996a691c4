"""Finds the blobs that a ledger refers to, and puts their bytes in the place of the references."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from runfold_schemas.blobs import BlobReference, BlobString, blob_string, reference_in
from runfold_schemas.data import maker_key
from runfold_schemas.messages import (
    MediaPart,
    Medium,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)

Blobs = Mapping[str, bytes | str]
"""The bytes of blobs by their digest, or the reason why there are no bytes."""

_NOT_FETCHED: Final = "the bytes were not fetched from the blob store"

_FILES: Final = ("file_id", "fileUri")


class Inlined(NamedTuple):
    """A part with the bytes of its blobs."""

    part: Part | None
    """None if nothing of the part can be sent."""
    missing: list[str]
    """A sentence for each blob without bytes."""


class BlobUse(NamedTuple):
    """A reference in a message."""

    reference: BlobReference
    maker: str | None
    """The only maker that understands the part with the reference. None if all do."""


def uses(messages: Iterable[Message], provider: str) -> Iterator[BlobUse]:
    """The references to the blobs that a request to the provider needs, in the order of the
    messages. A blob may come twice.
    """
    for message in messages:
        for part in message.parts:
            for reference in _for_all(part, provider):
                yield BlobUse(reference, None)
            for reference in _for_maker(part, provider):
                yield BlobUse(reference, message.maker)


def refers(part: Part, provider: str) -> bool:
    """Whether a request to the provider needs a blob for the part."""
    return any(True for _ in _for_all(part, provider)) or any(True for _ in _for_maker(part, provider))


def target_maker(maker: str | None, messages: Sequence[Message]) -> str | None:
    """The maker of the model that gets the messages. By default the maker of the last response."""
    return maker or next((each.maker for each in reversed(messages) if each.maker), None)


def is_foreign(maker: str | None, target: str | None) -> bool:
    """Whether both makers are known and differ."""
    return bool(maker and target and maker_key(maker) != maker_key(target))


def file_of(part: MediaPart, provider: str) -> str | None:
    """The name of the provider's own copy of the bytes, from its `provider_data`: a `file_id`, or
    Gemini's `fileUri`.
    """
    data = part.provider_data.get(provider) if part.provider_data else None
    if not isinstance(data, dict):
        return None
    return next((data[name] for name in _FILES if isinstance(data.get(name), str)), None)


def inline(part: Part, blobs: Blobs, provider: str) -> Inlined:
    """The part with bytes in the place of references.

    If a blob has no bytes, an image, another attachment or an opaque part is left out, other parts
    lose the provider's data, and the content of a result keeps its reference.
    """
    missing: list[str] = []
    if isinstance(part, MediaPart):
        return Inlined(_with_bytes(part, blobs, provider, missing), missing)
    changes: dict[str, Any] = {}
    listed = _listed(part)
    if isinstance(part, ToolResultPart) or (isinstance(part, OpaquePart) and part.provider == provider):
        changes["content"] = _restored(part.content, listed, blobs, missing)
        if missing and isinstance(part, OpaquePart):
            return Inlined(None, missing)
    if isinstance(part, ToolResultPart) and part.attachments:
        media = (_with_bytes(each, blobs, provider, missing) for each in part.attachments)
        changes["attachments"] = tuple(each for each in media if each is not None)
    if not isinstance(part, OpaquePart) and part.provider_data and provider in part.provider_data:
        before = len(missing)
        own = _restored(part.provider_data[provider], listed, blobs, missing)
        others = {name: data for name, data in part.provider_data.items() if name != provider}
        changes["provider_data"] = {**others, provider: own} if len(missing) == before else others
    return Inlined(part.model_copy(update=changes), missing)


def _listed(part: Part) -> Sequence[str]:
    """The digests of the references in the JSON of the part."""
    return part.blobs if isinstance(part, TextPart | ToolUsePart | ToolResultPart | OpaquePart) else ()


def _for_all(part: Part, provider: str) -> Iterator[BlobReference]:
    """The references in what every maker gets."""
    if isinstance(part, MediaPart):
        reference = reference_in(part.url)
        if reference is not None and file_of(part, provider) is None:
            yield reference
    elif isinstance(part, ToolResultPart):
        yield from _references_within(part.content, part.blobs)
        for attachment in part.attachments:
            yield from _for_all(attachment, provider)


def _for_maker(part: Part, provider: str) -> Iterator[BlobReference]:
    """The references in what the maker of the part alone gets back."""
    if isinstance(part, OpaquePart):
        if part.provider == provider:
            yield from _references_within(part.content, part.blobs)
    elif part.provider_data and provider in part.provider_data:
        yield from _references_within(part.provider_data[provider], _listed(part))


def _references_within(value: Any, listed: Sequence[str]) -> Iterator[BlobReference]:
    if not listed:
        return
    if isinstance(value, str):
        if (string := listed_reference(value, listed)) is not None:
            yield string.reference
    elif isinstance(value, dict):
        for member in value.values():
            yield from _references_within(member, listed)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _references_within(member, listed)


def listed_reference(text: str, listed: Sequence[str]) -> BlobString | None:
    """The reference in a text of JSON, if its digest is listed beside the JSON."""
    string = blob_string(text) if listed else None
    return string if string is not None and string.reference.sha256 in listed else None


def _with_bytes(part: Medium, blobs: Blobs, provider: str, missing: list[str]) -> Medium | None:
    reference = reference_in(part.url)
    if reference is None or file_of(part, provider) is not None:
        return part
    content = _bytes_of(reference, blobs)
    if isinstance(content, str):
        missing.append(f"{part.type} {reference.sha256}: {content}")
        return None
    return part.model_copy(update={"url": None, "data": b64encode(content).decode()})


def _bytes_of(reference: BlobReference, blobs: Blobs) -> bytes | str:
    """The bytes, or the reason why there are none."""
    content = blobs.get(reference.sha256, _NOT_FETCHED)
    if isinstance(content, bytes) and len(content) != reference.size:
        # The size decided how many blobs fit into the request.
        return f"the blob has {len(content):,} bytes instead of {reference.size:,}"
    return content


def _restored(value: Any, listed: Sequence[str], blobs: Blobs, missing: list[str]) -> Any:
    if not listed:
        return value
    if isinstance(value, str):
        if (string := listed_reference(value, listed)) is None:
            return value
        content = _bytes_of(string.reference, blobs)
        if isinstance(content, bytes):
            return string.restored(content)
        missing.append(f"blob {string.reference.sha256}: {content}")
        return value
    if isinstance(value, dict):
        return {name: _restored(member, listed, blobs, missing) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_restored(item, listed, blobs, missing) for item in value]
    return value
