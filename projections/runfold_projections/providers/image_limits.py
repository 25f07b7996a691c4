"""The sizes from which on a provider refuses an image, and with it the whole request.

- Anthropic: "image exceeds 5 MB maximum: 5649924 bytes > 5242880 bytes", of the base64
  (earendil-works/pi 424, lobehub/lobehub 14711); at most 8000 pixels a side, and 2000 if a request
  has more than 20 images (https://docs.claude.com/en/docs/vision): "At least one of the image
  dimensions exceed max allowed size for many-image requests: 2000 pixels" (anthropics/claude-code
  14412).
- Bedrock: 3.75 MB, 8000 pixels a side
  (https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Message.html).
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from runfold_projections.providers.image_sizes import image_size
from runfold_schemas.messages import ImagePart, Message, Provider, ToolResultPart


class _Limits(NamedTuple):
    characters: int
    """Of the base64."""
    side: int
    """In pixels."""
    few: int | None = None
    """More images than these in a request make it one of many images."""
    side_of_many: int = 0
    """In pixels, of each image of such a request."""


_LIMITS: Final[Mapping[Provider, _Limits]] = {
    "anthropic": _Limits(characters=5_242_880, side=8_000, few=20, side_of_many=2_000),
    "bedrock": _Limits(characters=5_000_000, side=8_000),
}


def too_large(provider: Provider, image: ImagePart, messages: Iterable[Message]) -> str | None:
    """Why the provider would refuse an image for its size in the request for these messages. None
    if it would not.
    """
    limits = _LIMITS.get(provider)
    if limits is None or not image.data:
        return None
    if len(image.data) > limits.characters:
        return f"an image of {len(image.data):,} characters of base64; {limits.characters:,} are allowed"
    if (size := image_size(image.media_type, image.data)) is None:
        return None
    if max(size) > limits.side:
        return f"an image of {size.width} x {size.height} pixels; {limits.side} a side are allowed"
    if limits.few is not None and max(size) > limits.side_of_many and _count(messages) > limits.few:
        return (
            f"an image of {size.width} x {size.height} pixels; {limits.side_of_many} a side are allowed in"
            f" a request with more than {limits.few} images"
        )
    return None


def _count(messages: Iterable[Message]) -> int:
    """The images of the messages, with those of results."""
    images = 0
    for message in messages:
        for part in message.parts:
            if isinstance(part, ImagePart):
                images += 1
            elif isinstance(part, ToolResultPart):
                images += sum(isinstance(each, ImagePart) for each in part.attachments)
    return images
