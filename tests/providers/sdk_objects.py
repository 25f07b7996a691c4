"""Responses as the official packages give them to their users."""

import json
from copy import deepcopy
from functools import cache
from importlib import import_module
from typing import Any

import botocore.session
from anthropic._models import construct_type as construct_anthropic
from anthropic.types import Message, RawMessageStreamEvent
from botocore.model import OperationModel
from botocore.parsers import EventStreamJSONParser, RestJSONParser
from google.genai.types import GenerateContentResponse
from openai._models import construct_type as construct_openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from runfold_schemas.messages import Provider


def response_object(provider: Provider, response: Any, model: str | None) -> Any:
    """A whole response. `model` is the full name of a class that replaces the usual one."""
    response = deepcopy(response)
    match provider:
        case "bedrock":
            return _converse_response(response)
        case "anthropic":
            return construct_anthropic(type_=_class(model) or Message, value=response)
        case "openai-chat":
            return construct_openai(type_=_class(model) or ChatCompletion, value=response)
        case "openai-responses":
            return construct_openai(type_=_class(model) or Response, value=response)
        case "gemini":
            return GenerateContentResponse._from_response(response=response, kwargs={})


def stream_objects(provider: Provider, chunks: list[Any], model: str | None) -> list[Any]:
    return [_chunk_object(provider, deepcopy(chunk), _class(model)) for chunk in chunks]


def _chunk_object(provider: Provider, chunk: Any, model: Any) -> Any:
    match provider:
        case "bedrock":
            return _stream_event(chunk)
        case "anthropic":
            return construct_anthropic(type_=model or RawMessageStreamEvent, value=chunk)
        case "openai-chat":
            return construct_openai(type_=model or ChatCompletionChunk, value=chunk)
        case "openai-responses":
            return construct_openai(type_=model or ResponseStreamEvent, value=chunk)
        case "gemini":
            return GenerateContentResponse._from_response(response=chunk, kwargs={})


def _class(name: str | None) -> Any:
    if name is None:
        return None
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


@cache
def _operation(name: str) -> OperationModel:
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    return service.operation_model(name)


def _converse_response(response: Any) -> Any:
    metadata = response.pop("ResponseMetadata", {})
    headers = {"x-amzn-requestid": metadata["RequestId"]} if "RequestId" in metadata else {}
    answer = {"status_code": 200, "headers": headers, "body": json.dumps(response).encode()}
    return RestJSONParser().parse(answer, _operation("Converse").output_shape)


def _stream_event(event: dict[str, Any]) -> Any:
    [(kind, content)] = event.items()
    shape = _operation("ConverseStream").output_shape.members["stream"]
    headers = {":message-type": "event", ":event-type": kind}
    answer = {"status_code": 200, "headers": headers, "body": json.dumps(content).encode()}
    return EventStreamJSONParser().parse(answer, shape)
