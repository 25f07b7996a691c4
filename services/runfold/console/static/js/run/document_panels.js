/** The panels of a run's record and of its state. */

import { h } from "../dom.js";
import { duration, fullTime, integer } from "../format.js";
import { asCurl, asPython, copyButton } from "../parts/copy.js";
import { factList } from "../parts/facts.js";
import { jsonBlock } from "../parts/json.js";
import { Loaded } from "../parts/loaded.js";
import { usageByModel } from "../parts/usage.js";
import { read, recordPath, statePath } from "./as_of.js";

class DocumentPanel {
  #loaded = new Loaded();

  /**
   * @param {(offset: number | null) => string} pathOf
   * @param {(document: any) => any} content
   * @param {{authentication: boolean}} login
   */
  constructor(pathOf, content, login) {
    this.pathOf = pathOf;
    this.content = content;
    this.element = h(
      "div",
      {},
      h(
        "div",
        { class: "panel-tools" },
        copyButton("curl", () => asCurl(this.pathOf(this.offset), login)),
        copyButton("Python", () => asPython(this.pathOf(this.offset), login)),
      ),
      this.#loaded.element,
    );
  }

  /** Shows the document as of an offset; null means now. */
  show(offset) {
    this.offset = offset;
    return this.#loaded.load(async (signal) => this.content(await read(this.pathOf(offset), signal)));
  }

  close() {
    this.#loaded.close();
  }
}

/** The panel of a run's record. */
export function recordPanel(runId, login) {
  return new DocumentPanel((offset) => recordPath(runId, { offset }), recordContent, login);
}

/** The panel of the state that a run has set. */
export function statePanel(runId, login, onPick) {
  return new DocumentPanel(
    (offset) => statePath(runId, { offset }),
    (document) => stateContent(document, onPick),
    login,
  );
}

function recordContent(record) {
  const facts = {
    Status: record.status,
    Phase: record.phase,
    Agent: record.agent_id,
    Session: record.session_id,
    User: record.user_id,
    Started: fullTime(record.started_at),
    Updated: fullTime(record.updated_at),
    Ended: fullTime(record.ended_at),
    Duration: typeof record.duration_seconds === "number" ? duration(record.duration_seconds * 1000) : null,
    Labels: pairs(record.labels),
    Error: record.error,
    "Forked from":
      record.forked_from && `${record.forked_from.run_id}, up to offset ${record.forked_from.offset}`,
    Exceptions: pairs(record.exceptions),
    "Refused changes of status": record.illegal_transitions || null,
  };
  return [
    factList(facts),
    record.usage?.by_model?.length > 0 && [
      h("h2", {}, "Tokens and cost"),
      usageByModel(record.usage.by_model, record.usage.cost),
    ],
    counts(record.counts),
    h("details", {}, h("summary", {}, "JSON"), jsonBlock(record, { label: "Record" })),
  ];
}

function counts(byType) {
  const entries = Object.entries(byType ?? {});
  if (entries.length === 0) return null;
  return [
    h("h2", {}, "Events that count"),
    h(
      "dl",
      { class: "facts" },
      entries.map(([type, count]) => [h("dt", {}, type), h("dd", {}, integer(count))]),
    ),
  ];
}

function stateContent({ state, offsets }, onPick) {
  const entries = Object.entries(state);
  if (entries.length === 0) return h("p", { class: "dim" }, "This run has set no state up to here.");
  return entries.map(([key, value]) => [
    h(
      "h2",
      {},
      h("code", {}, key),
      offsets?.[key] !== undefined &&
        h(
          "button",
          { type: "button", class: "link", onclick: () => onPick(offsets[key]) },
          `set at offset ${offsets[key]}`,
        ),
    ),
    jsonBlock(value, { label: key }),
  ]);
}

function pairs(object) {
  return Object.entries(object ?? {})
    .map((pair) => pair.join(": "))
    .join(", ");
}
