/** A session's conversation as a chat, with the calls of tools folded in it. */

import { h, fill } from "../dom.js";
import { duration, firstLine, integer } from "../format.js";
import { icon } from "../icons.js";
import { timeFact } from "../parts/facts.js";
import { jsonBlock } from "../parts/json.js";
import { media } from "../parts/media.js";
import { linkTo } from "../router.js";
import { describe } from "../run/describe.js";
import { itemsOf } from "../run/frameworks.js";
import { timeOf } from "../run/timeline.js";

const SHOWN = 200;

/** Events without a line of their own: those about the run, and those that a mark elsewhere shows. */
const UNSHOWN = new Set([
  ...["run_opened", "run_labeled", "run_paused", "phase_changed", "token_usage", "response_recorded"],
  ...["event_amended"],
]);

const COUNTS = new Set(["accepted", "late"]);
const WORDS = { user_message: "user", assistant_message: "assistant" };
const FOLDED = new Set(["system_message", "thinking", "tool_call", "tool_result"]);

/** Shows the last events of a timeline, and earlier ones on request. */
export class Chat {
  #shown = new Map();
  #count = SHOWN;

  /** @param {string} runId the run of the session */
  constructor(runId) {
    this.runId = runId;
    this.earlier = h(
      "button",
      { type: "button", class: "earlier", hidden: true, onclick: () => this.#showEarlier() },
      "Show earlier events",
    );
    this.list = h("ol", { class: "chat-lines" });
    this.element = h(
      "div",
      { class: "chat", tabindex: "0", role: "group", "aria-label": "Messages" },
      this.earlier,
      this.list,
    );
  }

  /** @param {import("../run/timeline.js").Timeline} timeline what it has changed is drawn again */
  update(timeline) {
    this.timeline = timeline;
    const stays = this.isAtEnd;
    const rows = lastShown(timeline.rows, this.#count + 1);
    this.earlier.hidden = rows.length <= this.#count;
    const before = this.#shown;
    this.#shown = new Map();
    for (const row of rows.slice(-this.#count)) {
      const version = versionOf(row, timeline);
      const entry = before.get(row.offset);
      const isSame = entry?.version === version;
      const element = isSame ? entry.element : this.#line(row, entry?.element);
      this.#shown.set(row.offset, { element, version });
    }
    this.#place([...this.#shown.values()].map(({ element }) => element));
    if (stays) this.element.scrollTop = this.element.scrollHeight;
  }

  /** Whether the reader looks at the newest events. */
  get isAtEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.element;
    return scrollTop + clientHeight >= scrollHeight - 40;
  }

  /** Brings an event into view. */
  select(offset) {
    this.#shown.get(offset)?.element.scrollIntoView({ block: "center" });
  }

  /** Only what is new moves, so that what is open, selected or focused stays so. */
  #place(elements) {
    const wanted = new Set(elements);
    for (const child of [...this.list.children]) if (!wanted.has(child)) child.remove();
    elements.forEach((element, index) => {
      if (this.list.children[index] !== element) {
        this.list.insertBefore(element, this.list.children[index] ?? null);
      }
    });
  }

  #showEarlier() {
    const before = this.element.scrollHeight - this.element.scrollTop;
    this.#count += SHOWN;
    this.update(this.timeline);
    this.element.scrollTop = this.element.scrollHeight - before;
  }

  #line(row, before) {
    const { event } = row.record;
    const isOpen = before?.querySelector("details")?.open;
    const items = itemsOf(event);
    const deletion = amendmentOf(row, this.timeline);
    const parts = items.map((item) => this.#item(item, row)).filter(Boolean);
    const line = h(
      "li",
      { class: `chat-line chat-${kindOf(items)}${deletion?.isDeleted ? " deleted" : ""}` },
      this.#head(row, items, deletion),
      parts,
      event.state_delta &&
        h("p", { class: "dim chat-state" }, icon("state"), ` ${Object.keys(event.state_delta).join(", ")}`),
    );
    if (isOpen) for (const details of line.querySelectorAll("details")) details.open = true;
    return line;
  }

  #head(row, items, deletion) {
    const word = WORDS[items[0].type];
    return h(
      "p",
      { class: "chat-head" },
      word && h("strong", {}, word),
      deletion && h("span", { class: "tag tag-amended" }, deletion.text),
      row.record.outcome === "late" && h("span", { class: "tag tag-late" }, "late"),
      timeFact(new Date(timeOf(row.record)).toISOString()),
      h(
        "a",
        { class: "chat-link", href: linkTo(["runs", this.runId], { offset: row.offset }) },
        `event ${integer(row.offset)}`,
      ),
    );
  }

  #item({ type, data }, row) {
    switch (type) {
      case "system_message":
        return folded(["system", "Instructions", ""], () => h("p", { class: "said" }, data.message));
      case "user_message":
      case "assistant_message":
        return [h("p", { class: "said" }, data.message), media(data.parts)];
      case "thinking":
        return folded(["thinking", "Thinking", data.signature ? "signed" : ""], () =>
          h("p", { class: "said" }, data.redacted ? "The provider has encrypted this." : data.text),
        );
      case "tool_call":
        return this.#call(data, row);
      case "tool_result":
        return row.isOrphan ? folded(["warning", "Result without a call", ""], () => outcome(data)) : null;
      default: {
        const { icon: name, actor, text } = describe(row.record);
        return h("p", { class: "chat-other" }, icon(name), ` ${actor}: ${text}`);
      }
    }
  }

  #call(data, row) {
    const ribbon = this.timeline.ribbonOf(data.tool_call_id, row);
    const result = ribbon.end === null ? null : this.timeline.rows[ribbon.end].record;
    const item = result && itemsOf(result.event).find((each) => each.data.tool_call_id === data.tool_call_id);
    const state = {
      open: "no result yet",
      missing: "no result",
      error: `error after ${duration(ribbon.milliseconds)}`,
      done: duration(ribbon.milliseconds),
    }[ribbon.state];
    const title = ["tool", data.tool_name || "tool", state, ribbon.state];
    return folded(title, () => [
      h("h2", {}, "Arguments"),
      jsonBlock(data.payload, { label: "Arguments" }),
      item && outcome(item.data),
      result &&
        h("a", { href: linkTo(["runs", this.runId], { offset: result.offset }) }, `event ${result.offset}`),
    ]);
  }
}

function folded([name, title, mark, state = ""], content) {
  const body = h("div", { class: "folded" });
  const details = h(
    "details",
    { class: "chat-folded" },
    h(
      "summary",
      {},
      icon(name),
      h("span", {}, title),
      mark && h("span", { class: `tag tag-${state === "done" ? "other" : state}` }, mark),
    ),
    body,
  );
  // Long arguments become elements only when the reader looks at them.
  details.addEventListener("toggle", () => details.open && !body.firstChild && fill(body, content()));
  return details;
}

function outcome({ result, error = null, attachments }) {
  const title = error === null ? "Result" : "Error";
  return [h("h2", {}, title), jsonBlock(error ?? result, { label: title }), media(attachments)];
}

/** A session may have many thousand events, so only as many as needed are looked at. */
function lastShown(rows, count) {
  const shown = [];
  for (let index = rows.length - 1; index >= 0 && shown.length < count; index -= 1) {
    if (isShown(rows[index])) shown.push(rows[index]);
  }
  return shown.reverse();
}

function isShown({ kind, record, isOrphan }) {
  if (kind !== "event" || !COUNTS.has(record.outcome)) return false;
  const types = itemsOf(record.event).map(({ type }) => type);
  if (UNSHOWN.has(types[0])) return false;
  return isOrphan || types.some((type) => type !== "tool_result");
}

function versionOf(row, timeline) {
  const ribbons = row.calls.map((id) => timeline.ribbonOf(id, row));
  return JSON.stringify([row.amendedBy, ribbons.map((each) => [each?.state, each?.end])]);
}

/** How an amendment changed an event: it deletes it, or other events stand in its place. */
function amendmentOf(row, timeline) {
  if (row.amendedBy === undefined) return null;
  const { stand_ins: standIns, reason } = timeline.rowAt(row.amendedBy).record.event.data;
  if (!standIns?.length) return { isDeleted: true, text: `deleted: ${firstLine(reason ?? "")}` };
  return { isDeleted: false, text: `replaced: ${firstLine(reason ?? "")}` };
}

function kindOf(items) {
  const { type } = items[0];
  return WORDS[type] ?? (FOLDED.has(type) ? "folds" : "other");
}
