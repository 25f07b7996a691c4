/** One event in full: what was said, a call with its result, and the raw record. */

import { h } from "../dom.js";
import { duration, fullTime, NOTHING } from "../format.js";
import { icon } from "../icons.js";
import { jsonBlock, textBlock } from "../parts/json.js";
import { media } from "../parts/media.js";
import { describe } from "./describe.js";
import { itemsOf } from "./frameworks.js";

/**
 * @param {import("./timeline.js").Row} row
 * @param {import("./timeline.js").Timeline} timeline
 * @param {(offset: number) => void} onPick goes to another event
 * @returns {HTMLElement}
 */
export function eventPanel(row, timeline, onPick) {
  const { record } = row;
  const { event } = record;
  const line = describe(record);
  return h(
    "article",
    { class: "event-panel" },
    h(
      "h2",
      {},
      icon(line.icon),
      ` ${line.actor}`,
      h("span", { class: "dim" }, ` at offset ${record.offset}`),
    ),
    notes(row, timeline, onPick),
    itemsOf(event).map((item) => content(item, row, timeline, onPick)),
    event?.state_delta && [
      h("h3", {}, "Changes of state"),
      jsonBlock(event.state_delta, { label: "Changes of state" }),
    ],
    facts(record),
    h("details", {}, h("summary", {}, "Raw record"), jsonBlock(record, { label: "Raw record" })),
  );
}

function notes({ record, amendedBy, isOrphan }, timeline, onPick) {
  const list = [];
  if (record.outcome !== "accepted") list.push(`${record.outcome}: ${record.reason ?? ""}`);
  if (record.effects === "unsigned")
    list.push("No key has signed this event, so it changes nothing beyond this run.");
  if (isOrphan) list.push("No call in this run has this id.");
  const shown = list.map((text) => h("p", { class: "odd-note" }, icon("warning"), text));
  if (amendedBy !== undefined) {
    shown.push(
      h(
        "p",
        { class: "odd-note" },
        icon("note"),
        "The ledger has something else in its place: ",
        pick("the amendment", amendedBy, onPick),
      ),
    );
  }
  return shown;
}

function content({ type, data }, row, timeline, onPick) {
  switch (type) {
    case "user_message":
    case "assistant_message":
    case "system_message":
      return [textBlock(data.message, { label: "Message" }), media(data.parts), citations(data.citations)];
    case "thinking":
      return thinking(data);
    case "tool_call":
      return [
        toolTitle(data.tool_name, data.tool_call_id),
        jsonBlock(data.payload, { label: "Arguments" }),
        result(data, row, timeline, onPick),
      ];
    case "tool_result":
      return toolResult(data, row, timeline, onPick);
    case "event_amended":
      return [
        h("p", {}, data.reason, " ", pick(`offset ${data.offset}`, data.offset, onPick)),
        data.stand_ins?.length ? jsonBlock(data.stand_ins, { label: "What stands in its place" }) : null,
      ];
    case "run_failed":
      return textBlock(data.error, { label: "Error" });
    default:
      return Object.keys(data ?? {}).length ? jsonBlock(data, { label: "Data" }) : null;
  }
}

function thinking(data) {
  const mark = data.signature ? "signed" : data.redacted ? "redacted" : "not signed";
  return h(
    "details",
    {},
    h("summary", {}, "Thinking ", h("span", { class: "tag" }, data.signature && icon("signature"), mark)),
    textBlock(data.redacted ? "The provider has encrypted this thinking." : data.text, { label: "Thinking" }),
  );
}

function toolTitle(name, id) {
  return h("p", {}, h("strong", {}, name || "tool"), " ", h("code", { class: "dim" }, id));
}

function result(data, row, timeline, onPick) {
  const ribbon = timeline.ribbonOf(data.tool_call_id, row);
  if (ribbon?.end === null) {
    const text = ribbon.state === "missing" ? "This call has no result." : "The result has not come yet.";
    return h("p", { class: ribbon.state === "missing" ? "odd-note" : "dim" }, text);
  }
  const { record } = timeline.rows[ribbon.end];
  const item = itemsOf(record.event).find((each) => each.data.tool_call_id === data.tool_call_id) ?? {
    data: {},
  };
  return [
    h(
      "h3",
      {},
      ribbon.state === "error" ? "Error" : "Result",
      h("span", { class: "dim" }, ` after ${duration(ribbon.milliseconds)}, `),
      pick(`offset ${record.offset}`, record.offset, onPick),
    ),
    jsonBlock(item.data.error ?? item.data.result, { label: "Result" }),
    media(item.data.attachments),
  ];
}

function toolResult(data, row, timeline, onPick) {
  const ribbon = timeline.ribbonOf(data.tool_call_id, row);
  const call = ribbon && timeline.rows[ribbon.begin].record.offset;
  const isError = data.error !== null && data.error !== undefined;
  return [
    toolTitle(data.tool_name || ribbon?.name, data.tool_call_id),
    ribbon && h("p", {}, `${duration(ribbon.milliseconds)} after `, pick("the call", call, onPick)),
    h("h3", {}, isError ? "Error" : "Result"),
    jsonBlock(isError ? data.error : data.result, { label: isError ? "Error" : "Result" }),
    media(data.attachments),
  ];
}

function citations(list) {
  return list?.length ? [h("h3", {}, "Sources"), jsonBlock(list, { label: "Sources" })] : null;
}

function facts({ event, log_time: logTime, outcome }) {
  const rows = {
    Type: event?.type ?? "undecodable",
    Outcome: outcome,
    "In the log since": fullTime(logTime),
    "Producer's time": event ? fullTime(event.timestamp) : NOTHING,
    Turn: event?.turn_id ?? NOTHING,
    Event: event?.event_id ?? NOTHING,
    Message: event?.message_id,
    Provider: event?.provider,
  };
  const shown = Object.entries(rows).filter(([, value]) => value !== undefined && value !== null);
  return h(
    "dl",
    { class: "facts" },
    shown.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

function pick(text, offset, onPick) {
  return h("button", { type: "button", class: "link", onclick: () => onPick(offset) }, text);
}
