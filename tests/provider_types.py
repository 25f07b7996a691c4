"""Requests checked by what the providers publish themselves: botocore's service model, the types of
the three SDKs.

The SDKs' request types are TypedDicts for type checkers: they take unknown members, and `Iterable`
members are not looked into. `_strict` makes of each one that forbids and looks.
"""

import types
from collections.abc import Iterable, Sequence
from functools import cache, reduce
from operator import or_
from os import PathLike
from typing import IO, Annotated, Any, NotRequired, Required, Union, get_args, get_origin

import botocore.session
from anthropic.types import message_create_params as anthropic_params
from anthropic.types.beta import message_create_params as beta_params
from botocore.validate import ParamValidator
from google.genai.types import Content
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params
from pydantic import BaseModel, ConfigDict, TypeAdapter
from typing_extensions import TypedDict, get_type_hints, is_typeddict

from runfold_schemas.messages import Provider


def check(provider: Provider, body: dict[str, Any], *, beta: bool = False) -> None:
    """Raises if the provider's package would not have this request. `beta` admits what
    Anthropic has in beta.
    """
    match provider:
        case "bedrock":
            report = ParamValidator().validate({"modelId": "m", **body}, _converse())
            assert not report.has_errors(), report.generate_report()
        case "gemini":
            for content in [*body["contents"], body.get("systemInstruction", {})]:
                Content.model_validate(content)
        case "anthropic":
            params = beta_params if beta else anthropic_params
            _adapter(params.MessageCreateParamsNonStreaming).validate_python(
                _unstreamed({"model": "m", "max_tokens": 1} | body)
            )
        case "openai-chat":
            _adapter(chat_params.CompletionCreateParamsNonStreaming).validate_python(
                _unstreamed({"model": "m"} | body)
            )
        case "openai-responses":
            _adapter(responses_params.ResponseCreateParamsNonStreaming).validate_python(
                _unstreamed({"model": "m"} | body)
            )


def _unstreamed(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


@cache
def _converse() -> Any:
    return (
        botocore.session.get_session()
        .get_service_model("bedrock-runtime")
        .operation_model("Converse")
        .input_shape
    )


@cache
def _adapter(params: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_strict(params))


def _strict(annotation: Any) -> Any:
    if is_typeddict(annotation):
        return _strict_dict(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Required, NotRequired, Annotated):
        return _strict(arguments[0])
    if origin in (Iterable, Sequence, list):
        return list[_strict(arguments[0])]
    if origin in (Union, types.UnionType):
        return reduce(or_, [_strict(one) for one in arguments if not _is_object(one)])
    return annotation


@cache
def _strict_dict(params: Any) -> Any:
    members = {
        name: (Required if name in params.__required_keys__ else NotRequired)[_strict(annotation)]
        for name, annotation in get_type_hints(params).items()
    }
    strict = TypedDict(params.__name__, members)
    strict.__pydantic_config__ = ConfigDict(extra="forbid")
    return strict


def _is_object(annotation: Any) -> bool:
    """Whether this is an object of Python: an SDK takes files, and hands on its responses, but the
    wire has none.
    """
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, BaseModel | IO | PathLike)
