"""What the models of request bodies share. This module needs pydantic only, because clients over
HTTP import the same models.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from runfold_schemas.codec import first_fault
from runfold_schemas.errors import InvalidEventError

RequestT = TypeVar("RequestT", bound=BaseModel)


class RequestBody(BaseModel):
    """The base of every request's model. An unknown field is refused: a mistyped field would have
    no effect otherwise. Events differ, since a newer writer may add fields to them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


def parse_request(model: type[RequestT], fields: Any) -> RequestT:
    """The model made of decoded JSON. Raises `InvalidEventError` naming the field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error


def describe_body(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of a route that reads its JSON body itself."""
    return describe_content({"application/json": {"schema": model.model_json_schema()}})


def describe_content(content: dict[str, Any]) -> dict[str, Any]:
    """As `describe_body`, with a schema for each media type."""
    return {"requestBody": {"required": True, "content": content}}
