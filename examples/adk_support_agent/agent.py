"""A support agent of ADK with two tools. Its model follows rules and needs no network."""

import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools import ToolContext
from google.genai import types

ORDERS: dict[str, dict[str, Any]] = {
    "A17": {"status": "on its way", "items": ["a kettle", "two cups"], "price": 41.5},
    "B02": {"status": "delivered", "items": ["a lamp"], "price": 23.0},
}


def find_order(order_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Looks up an order.

    Args:
        order_id: a letter and digits.
    """
    order = ORDERS.get(order_id)
    if order is None:
        return {"error": f"there is no order {order_id}"}
    tool_context.state["order"] = order_id
    return {"order_id": order_id, **order}


def refund(order_id: str, tool_context: ToolContext) -> dict[str, Any]:
    """Refunds an order.

    Args:
        order_id: a letter and digits.
    """
    order = ORDERS.get(order_id)
    refunds: list[str] = tool_context.state.get("user:refunds", [])
    if order is None or order_id in refunds:
        return {"error": f"order {order_id} cannot be refunded"}
    tool_context.state["user:refunds"] = [*refunds, order_id]
    return {"order_id": order_id, "refunded": order["price"]}


class RuleModel(BaseLlm):
    """Takes the place of a language model: reads the whole conversation, and calls a tool or
    answers.
    """

    model: str = "rules"

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002  # every answer is one piece
    ) -> AsyncGenerator[LlmResponse, None]:
        part = _reply(llm_request.contents)
        # ADK logs a warning for a response without a token count.
        free = types.GenerateContentResponseUsageMetadata(prompt_token_count=0, candidates_token_count=0)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=free)


def _reply(contents: Sequence[types.Content]) -> types.Part:
    parts = [part for content in contents for part in content.parts or []]
    if answer := parts[-1].function_response:
        return types.Part(text=_sentence(answer.name or "", answer.response or {}))
    question = parts[-1].text or ""
    orders = re.findall(r"\b[A-Z]\d+\b", " ".join(part.text or "" for part in parts))
    if not orders:
        return types.Part(text="Which order is it?")
    tool = "refund" if "refund" in question.lower() else "find_order"
    # The order that was named last, perhaps days ago and in another process.
    return types.Part.from_function_call(name=tool, args={"order_id": orders[-1]})


def _sentence(tool: str, answer: dict[str, Any]) -> str:
    if error := answer.get("error"):
        return f"I am sorry: {error}."
    if tool == "refund":
        return f"Done: {answer['refunded']:.2f} for order {answer['order_id']} are on their way to you."
    return f"Order {answer['order_id']} ({' and '.join(answer['items'])}) is {answer['status']}."


root_agent = LlmAgent(
    name="support_agent",
    model=RuleModel(),
    instruction="You answer questions about orders, and refund them if a customer is not happy.",
    tools=[find_order, refund],
)
