"""An endpoint on loopback that speaks OpenAI's chat completions, and says what a script has."""

import json
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Endpoint:
    """Gives its answers one after the other, the last one for ever: a dict is what the model says,
    a number a status.
    """

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.app = Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])

    async def _complete(self, request: Request) -> Response:
        self.requests.append(await request.json())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, int):
            return JSONResponse(
                {"error": {"message": f"refused with {answer}", "type": "x", "code": None}}, answer
            )
        return JSONResponse(_completion(self.requests[-1], answer))


def _completion(request: dict[str, Any], said: Any) -> dict[str, Any]:
    """What the model says, by the tool that it is asked to answer with, or as the text of the
    schema asked for.
    """
    text = said if isinstance(said, str) else json.dumps(said)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if tools := request.get("tools"):
        function = {"name": tools[0]["function"]["name"], "arguments": text}
        call = {"id": "call_1", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [
            {"index": 0, "message": message, "finish_reason": "tool_calls" if tools else "stop"},
        ],
        "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30},
    }
