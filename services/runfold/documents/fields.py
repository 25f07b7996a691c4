"""Fields that several requests have: the expiry, and the id of a creation."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Self

from pydantic import Field, model_validator

from runfold.http.requests import RequestBody
from runfold_schemas.data import EventId, Time, TtlSeconds

CreationId = Annotated[
    EventId | None,
    Field(
        description="A UUID in lower case that is new for each creation. A creation that is"
        " sent again with the same"
        " `event_id` counts once. It is also the new id, unless the request names another id."
    ),
]


class Expiring(RequestBody):
    """A request that may set an expiry."""

    ttl_seconds: TtlSeconds | None = Field(None, description="Seconds from now until the expiry.")
    expires_at: Time | None = Field(None, description="The time of the expiry. Give this or `ttl_seconds`.")

    @model_validator(mode="after")
    def _has_one_expiry(self) -> Self:
        if self.ttl_seconds is not None and self.expires_at is not None:
            raise ValueError("either ttl_seconds or expires_at")
        return self

    @property
    def ttl(self) -> timedelta | None:
        return None if self.ttl_seconds is None else timedelta(seconds=self.ttl_seconds)

    def expiry(self) -> datetime | None:
        """The time of expiry. A time to live counts from now."""
        return self.expires_at if self.ttl is None else datetime.now(UTC) + self.ttl
