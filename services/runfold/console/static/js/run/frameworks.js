/**
 * Reads events of agent frameworks for display: which messages, calls and results are in them. The
 * ledger beside the timeline is the exact translation; this one is for readers only.
 */

const ROLES = new Map([
  ["user", "user_message"],
  ["system", "system_message"],
  ["developer", "system_message"],
]);

/**
 * @typedef {{type: string, data: Record<string, any>}} Item an event of Runfold's own kinds
 *
 * The items in an event, which for other kinds than `framework_event` is the event itself. The body
 * of such an event may be any JSON: one of another form is one item as well.
 * @param {Record<string, any> | null} event
 * @returns {Item[]}
 */
export function itemsOf(event) {
  if (event === null) return [];
  if (event.type !== "framework_event") return [event];
  const read = event.data?.framework === "openai-agents" ? responsesItems : geminiItems;
  try {
    const items = read(event.data.body);
    return items.length ? items : [event];
  } catch {
    return [event];
  }
}

function geminiItems(body) {
  const whole = body.rawEvent ?? body;
  const content = whole.content ?? body.content;
  if (whole.partial || !Array.isArray(content?.parts)) return [];
  return content.parts.flatMap((part) => geminiItem(part, content.role));
}

function geminiItem(part, role) {
  const call = part.function_call ?? part.functionCall;
  const result = part.function_response ?? part.functionResponse;
  if (call) {
    const data = { tool_call_id: call.id ?? call.name, tool_name: call.name, payload: call.args };
    return [{ type: "tool_call", data }];
  }
  if (result) {
    const { error = null } = result.response ?? {};
    const data = {
      tool_call_id: result.id ?? result.name,
      tool_name: result.name,
      result: result.response,
      error,
    };
    return [{ type: "tool_result", data }];
  }
  if (typeof part.text !== "string") return [{ type: "provider_part", data: { content: part } }];
  if (part.thought) {
    const signature = part.thought_signature ?? part.thoughtSignature ?? "";
    return [{ type: "thinking", data: { text: part.text, signature, final: true } }];
  }
  return [{ type: role === "user" ? "user_message" : "assistant_message", data: { message: part.text } }];
}

function responsesItems(item) {
  switch (item.type ?? "message") {
    case "message": {
      const parts = Array.isArray(item.content)
        ? item.content.map((part) => part.text ?? part.refusal ?? "")
        : [item.content];
      return [{ type: ROLES.get(item.role) ?? "assistant_message", data: { message: parts.join("") } }];
    }
    case "function_call":
      return [
        {
          type: "tool_call",
          data: { tool_call_id: item.call_id, tool_name: item.name, payload: item.arguments },
        },
      ];
    case "function_call_output":
      return [{ type: "tool_result", data: { tool_call_id: item.call_id, result: item.output } }];
    case "reasoning":
      return [
        {
          type: "thinking",
          data: { text: (item.summary ?? []).map((part) => part.text).join("\n"), final: true },
        },
      ];
    default:
      return [];
  }
}
