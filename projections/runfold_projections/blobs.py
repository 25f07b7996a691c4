"""Takes large bytes out of events: the log holds a reference in their place.

Bytes are taken from media, and from base64 in JSON that the ledger hands back unchanged: blocks of
a provider and provider data. From results of tools they are taken only if their place says that
they are bytes, because a text may be base64 by chance. Text stays in the event, and so do the
events of agent frameworks, because their SDKs get them back whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from runfold_projections.providers.media_types import is_text
from runfold_schemas.blobs import BlobReference, BlobString, blob_string, bytes_of, reference_in, reference_to
from runfold_schemas.codec import TYPE_OF
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    ProviderPart,
    ResponseRecorded,
    StandIn,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import MediaPart

_MEDIA_TYPE_NAMES: Final = ("mimeType", "mime_type", "media_type")
_BINARY_TYPES: Final = frozenset({"audio", "base64", "image"})


def says_bytes(owner: Mapping[str, Any], name: str) -> bool:
    """Whether a member of a JSON object is bytes as base64, as providers and MCP write media."""
    if name == "bytes":
        return True
    kind = owner.get("type")
    if name == "result":
        return kind == "image_generation_call"
    if name not in {"blob", "data"}:
        return False
    media_type = next((owner[each] for each in _MEDIA_TYPE_NAMES if isinstance(owner.get(each), str)), "")
    is_binary = media_type != "" and (name == "blob" or not is_text(media_type))
    return is_binary or (isinstance(kind, str) and kind in _BINARY_TYPES)


def extract(event: AnyEvent, *, bytes_min: int) -> tuple[AnyEvent, dict[BlobReference, bytes]]:
    """The event with references in the place of all blobs of at least `bytes_min` bytes, and these
    blobs. The event itself does not change.
    """
    extraction = _Extraction(bytes_min)
    data = extraction.data(event.data)
    if not extraction.blobs or extraction.has_ambiguous_text:
        return event, {}
    # The data has the class that it had before. mypy cannot infer that.
    changed: AnyEvent = event.model_copy(update={"data": data})
    return changed, extraction.blobs


def digests_in(event: AnyEvent) -> set[str]:
    """The digests of the blobs that an event refers to."""
    return _digests_of(event.data)


def _digests_of(data: Data) -> set[str]:
    match data:
        case UserMessage(parts=parts):
            return _digests_of_media(parts or ())
        case ToolResult(attachments=attachments, blobs=blobs):
            return {*blobs, *_digests_of_media(attachments)}
        case ProviderPart() | AssistantMessage() | ToolCall() | ResponseRecorded():
            return {*data.blobs}
        case EventAmended(stand_ins=stand_ins):
            return set().union(*(_digests_of(stand_in.decode()) for stand_in in stand_ins))
        case _:
            return set()


def _digests_of_media(parts: Iterable[Any]) -> set[str]:
    references = (reference_in(part.url) for part in parts if isinstance(part, MediaPart))
    return {reference.sha256 for reference in references if reference is not None}


class _Extraction:
    """The blobs of one event."""

    def __init__(self, bytes_min: int) -> None:
        self.blobs: dict[BlobReference, bytes] = {}
        self._texts: set[str] = set()
        self._bytes_min = bytes_min
        # Base64 has four characters for three bytes.
        self._length_min = bytes_min // 3 * 4

    @property
    def has_ambiguous_text(self) -> bool:
        """Whether a text of the event looks like a reference to one of its blobs. As many such
        texts as a tool likes would become as many copies of the bytes.
        """
        return any(reference.sha256 in self._texts for reference in self.blobs)

    def data(self, data: Data) -> Data:
        match data:
            case UserMessage():
                return self._changed(data, {"parts": self._media(data.parts)})
            case ToolResult():
                json = _Json(self, data.blobs)
                changes = {
                    "attachments": self._media(data.attachments),
                    "result": json.changed(data.result, anywhere=False),
                    "provider_data": json.changed(data.provider_data),
                }
                return self._changed(data, changes | json.listed)
            case ProviderPart():
                json = _Json(self, data.blobs)
                return self._changed(data, {"content": json.changed(data.content)} | json.listed)
            case AssistantMessage() | ToolCall() | ResponseRecorded():
                json = _Json(self, data.blobs)
                changes = {"provider_data": json.changed(data.provider_data)}
                return self._changed(data, changes | json.listed)
            case EventAmended():
                return self._changed(data, {"stand_ins": self._stand_ins(data.stand_ins)})
            case _:
                return data

    def keep(self, content: bytes) -> BlobReference:
        """The reference to the bytes, which leave the event."""
        reference = reference_to(content)
        self.blobs[reference] = content
        return reference

    def bytes_in(self, text: str) -> Any:
        """The bytes in a text, as in `bytes_of`, if they are large enough."""
        if len(text) < self._length_min:
            return None
        content = bytes_of(text)
        return content if content is not None and len(content[0]) >= self._bytes_min else None

    def leave(self, text: str, listed: Sequence[str]) -> None:
        """Remembers a text that stays, if it looks like a reference."""
        found = blob_string(text)
        if found is not None and found.reference.sha256 not in listed:
            self._texts.add(found.reference.sha256)

    def _changed(self, data: Data, fields: dict[str, Any]) -> Data:
        changes = {name: value for name, value in fields.items() if value is not getattr(data, name)}
        return data.model_copy(update=changes) if changes else data

    def _media(self, parts: Any) -> Any:
        changed = tuple(map(self._medium, parts or ()))
        return (
            changed if any(new is not old for new, old in zip(changed, parts or (), strict=True)) else parts
        )

    def _medium(self, part: Any) -> Any:
        if not isinstance(part, MediaPart) or part.data is None:
            return part
        content = self.bytes_in(part.data)
        if content is None:
            return part
        return part.model_copy(update={"data": None, "url": self.keep(content[0]).url})

    def _stand_ins(self, stand_ins: tuple[StandIn, ...]) -> Any:
        changed = tuple(map(self._stand_in, stand_ins))
        return (
            changed if any(new is not old for new, old in zip(changed, stand_ins, strict=True)) else stand_ins
        )

    def _stand_in(self, stand_in: StandIn) -> StandIn:
        data = stand_in.decode()
        changed = self.data(data)
        if changed is data:
            return stand_in
        fields = changed.model_dump(mode="json", exclude_unset=True)
        return StandIn.model_validate({"type": TYPE_OF[type(changed)], "data": fields})


class _Json:
    """The JSON of one event's data, whose digests are listed beside it."""

    def __init__(self, extraction: _Extraction, blobs: tuple[str, ...]) -> None:
        self._extraction = extraction
        self._before = self._blobs = blobs

    @property
    def listed(self) -> dict[str, Any]:
        """The field with the digests, if it has new ones."""
        return {} if self._blobs is self._before else {"blobs": self._blobs}

    def changed(self, value: Any, *, anywhere: bool = True, here: bool = False) -> Any:
        """The value with references in the place of long base64: of all base64, or of data URLs and
        of what says that it is bytes. Other values stay the same objects.
        """
        if isinstance(value, str):
            return self._changed_text(value, is_taken=anywhere or here or value.startswith("data:"))
        if isinstance(value, dict):
            members = {
                name: self.changed(member, anywhere=anywhere, here=says_bytes(value, name))
                for name, member in value.items()
            }
            return members if any(members[name] is not value[name] for name in members) else value
        if isinstance(value, list):
            items = [self.changed(item, anywhere=anywhere) for item in value]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    def _changed_text(self, text: str, *, is_taken: bool) -> str:
        content = self._extraction.bytes_in(text) if is_taken else None
        if content is None:
            self._extraction.leave(text, self._before)
            return text
        reference = self._extraction.keep(content[0])
        if reference.sha256 not in self._blobs:
            self._blobs = (*self._blobs, reference.sha256)
        return BlobString(reference, *content[1:]).text
