/** What an event says in one line, and how it looks. */

import { firstLine } from "../format.js";
import { itemsOf } from "./frameworks.js";

/**
 * @typedef {"user" | "assistant" | "system" | "thinking" | "tool" | "error" | "run" | "other" | "odd"} Tone
 *
 * @typedef {object} Line
 * @property {string} icon a name in `icons.js`
 * @property {string} actor a word for who acts, or what happens
 * @property {string} text
 * @property {Tone} tone its colour, in the timeline and in the minimap
 * @property {string[]} tags short marks behind the text
 */

const LENGTH = 300;

/**
 * An event that cannot be described, whatever an agent has put into it, is one line as well.
 * @param {Record<string, any>} record as `GET /v1/runs/{id}/events` returns it
 * @returns {Line}
 */
export function describe(record) {
  const { event, outcome } = record;
  if (event === null) {
    return { icon: "warning", actor: "undecodable", text: record.reason ?? "", tone: "odd", tags: [] };
  }
  const line = lineOf(event);
  if (event.state_delta) line.tags.push("state");
  if (record.effects === "unsigned") line.tags.push("unsigned");
  if (outcome !== "accepted") line.tags.unshift(outcome);
  if (outcome === "duplicate" || outcome === "rejected" || outcome === "undecodable") line.tone = "odd";
  return line;
}

function lineOf(event) {
  try {
    const lines = itemsOf(event).map(itemLine);
    const texts = lines.length > 1 ? lines.map((each) => `${each.actor}: ${each.text}`) : [lines[0].text];
    const tags = lines.flatMap((each) => each.tags);
    return { ...lines[0], text: firstLine(texts.join("  ·  "), LENGTH), tags };
  } catch {
    return { icon: "warning", actor: "event", text: "cannot be shown in one line", tone: "odd", tags: [] };
  }
}

function itemLine({ type, data }) {
  const [icon, actor, tone, text, ...tags] = (KINDS[type] ?? other)(data, type);
  return { icon, actor, tone, text, tags: tags.filter(Boolean) };
}

const KINDS = {
  system_message: (data) => ["system", "system", "system", data.message],
  user_message: (data) => ["user", "user", "user", data.message, ...partKinds(data.parts)],
  assistant_message: (data) => [
    "assistant",
    "assistant",
    "assistant",
    data.message,
    data.refusal && "refusal",
  ],
  thinking: (data) => [
    "thinking",
    "thinking",
    "thinking",
    data.redacted ? "(redacted)" : data.text,
    data.signature || data.redacted ? "signed" : null,
    data.final || data.signature || data.redacted ? null : "growing",
  ],
  tool_call: (data) => [
    "tool",
    "call",
    "tool",
    `${data.tool_name}  ${json(data.payload)}`,
    data.parent_tool_call_id && "nested",
  ],
  tool_result: resultLine,
  planner_note: (data) => ["note", "note", "other", data.note],
  prompt_rendered: (data) => ["note", "prompt", "other", `${data.prompt_id} ${data.version ?? ""}`.trim()],
  policy_decided: (data) => ["note", "policy", "other", policyText(data)],
  run_scored: (data) => ["note", "score", "other", scoreText(data)],
  token_usage: (data) => ["state", "usage", "other", usageText(data)],
  provider_part: (data) => [
    "note",
    "part",
    "other",
    json(data.content),
    data.finished === false && "unfinished",
  ],
  response_recorded: (data) => [
    data.finished === false ? "warning" : "assistant",
    "response",
    data.finished === false || data.faults?.length ? "odd" : "other",
    [data.model, data.finished === false ? "broke off" : data.stop_reason, ...(data.faults ?? [])]
      .filter(Boolean)
      .join(", "),
  ],
  event_amended: (data) => [
    "note",
    "amended",
    "odd",
    `offset ${data.offset} is replaced by ${replacement(data.stand_ins)}: ${data.reason}`,
    "amendment",
  ],
  summary: (data) => ["note", "summary", "other", data.text],
  state_changed: () => ["state", "state", "other", ""],
  state_deleted: (data) => ["state", "state", "other", `deleted ${data.keys?.join(", ") ?? "all keys"}`],
  run_opened: (data) => ["running", "run", "run", data.agent_id ? `opened for ${data.agent_id}` : "opened"],
  run_failed: (data) => ["failed", "run", "error", `failed: ${data.error}`],
  run_completed: () => ["completed", "run", "run", "completed"],
  run_canceled: (data) => ["canceled", "run", "run", `canceled${data.reason ? `: ${data.reason}` : ""}`],
  run_paused: (data) => ["paused", "run", "run", `paused${data.reason ? `: ${data.reason}` : ""}`],
  run_labeled: (data) => [
    "note",
    "labels",
    "run",
    Object.entries(data.labels ?? {})
      .map((pair) => pair.join("="))
      .join(" "),
  ],
  phase_changed: (data) => ["running", "phase", "run", data.phase],
};

function policyText(data) {
  const tools = data.allowed_tools ? `tools: ${data.allowed_tools.join(", ") || "none"}` : "any tool";
  return [tools, ...Object.entries(data.caps ?? {}).map((pair) => pair.join("="))].join("; ");
}

function scoreText(data) {
  const of = data.scored_offset ?? data.scored_turn_id;
  const said = [data.score, data.label, data.reason].filter((part) => part !== null && part !== undefined);
  return `${data.scorer}${of === null || of === undefined ? "" : ` of ${of}`}: ${said.join(", ")}`;
}

function resultLine(data) {
  const name = data.tool_name || data.tool_call_id;
  const attached = (data.attachments ?? []).map((medium) => medium.type);
  if (data.error !== null && data.error !== undefined) {
    return ["warning", "error", "error", `${name}  ${json(data.error)}`, "error", ...attached];
  }
  return ["tool", "result", "tool", `${name}  ${json(data.result)}`, ...attached];
}

function replacement(standIns) {
  return (standIns ?? []).map((each) => each.type).join(" and ") || "nothing";
}

function other(data, type) {
  return ["note", type.split("_", 1)[0], "other", `${type.replaceAll("_", " ")}  ${json(data)}`];
}

function partKinds(parts) {
  return (parts ?? []).filter((part) => part.type !== "text").map((part) => part.type);
}

function usageText(data) {
  const text = `${data.input_tokens ?? 0} tokens in, ${data.output_tokens ?? 0} out`;
  return data.model ? `${data.model}: ${text}` : text;
}

function json(value) {
  if (typeof value === "string") return value;
  const text = JSON.stringify(value);
  return text === undefined ? "" : text.slice(0, LENGTH);
}
