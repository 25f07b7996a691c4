/** The revisions of a memory, the newest first, each with what changed and where it came from. */

import { h, fill } from "../dom.js";
import { fullTime } from "../format.js";
import { getJson } from "../http.js";
import { icon } from "../icons.js";
import { timeFact } from "../parts/facts.js";
import { jsonBlock } from "../parts/json.js";
import { wordDifference } from "../parts/word_difference.js";
import { askToRollBack } from "./roll_back.js";
import { originOf } from "./origin.js";

const PAGE = 50;

const ACTIONS = {
  created: ["completed", "Created"],
  updated: ["note", "Updated"],
  deleted: ["close", "Deleted"],
  rolled_back: ["back", "Rolled back"],
};

/** What a memory is beside its fact; the scope never changes. */
const FIELDS = ["display_name", "description", "topics", "metadata", "expires_at"];

/** Shows the revisions at the address of a memory. */
export class Revisions {
  #revisions = [];
  #cursor = null;
  #origins = new Map();
  #controller = new AbortController();

  /**
   * @param {string} path of the memory
   * @param {{mayChange: boolean, onChange: () => Promise<void>}} options `onChange` is called after a
   *   rollback
   */
  constructor(path, options) {
    this.path = path;
    this.options = options;
    this.list = h("ol", { class: "revisions" });
    this.more = h(
      "button",
      { type: "button", hidden: true, onclick: () => this.#loadMore() },
      "Load earlier revisions",
    );
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.element = h(
      "div",
      { class: "revision-page", tabindex: "0", role: "region", "aria-label": "Revisions" },
      h("h2", { class: "unseen" }, "Revisions"),
      this.list,
      this.problem,
      this.more,
    );
  }

  /**
   * Reads the newest revisions, and draws if there is another one.
   * @param {Record<string, any> | null} memory as it is now; null if it was deleted
   */
  async show(memory, signal) {
    const page = await this.#read(null, signal);
    const [newest] = page.revisions;
    if (newest && newest.revision_id === this.#revisions[0]?.revision_id) return;
    this.memory = memory;
    this.#revisions = page.revisions;
    this.#cursor = page.next_cursor;
    this.#draw();
  }

  /** Ends the requests. */
  close() {
    this.#controller.abort();
  }

  #read(cursor, signal) {
    return getJson(`${this.path}/revisions`, { limit: PAGE, cursor }, { signal });
  }

  async #loadMore() {
    try {
      const page = await this.#read(this.#cursor, this.#controller.signal);
      this.#revisions.push(...page.revisions);
      this.#cursor = page.next_cursor;
      this.problem.hidden = true;
      this.#draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.problem.textContent = error.message;
      this.problem.hidden = false;
    }
  }

  #draw() {
    this.more.hidden = this.#cursor === null;
    const items = this.#revisions.map((revision, index) =>
      this.#item(revision, earlierOf(this.#revisions, index), index),
    );
    if (items.length === 0) items.push(h("li", { class: "dim" }, "This memory has no revisions."));
    fill(this.list, items);
  }

  #item(revision, before, index) {
    const [name, word] = ACTIONS[revision.action];
    const isLast = before === undefined && this.#cursor !== null;
    return h(
      "li",
      { class: `revision revision-${revision.action}` },
      h(
        "div",
        { class: "revision-head" },
        h("h3", {}, icon(name), ` ${word}`),
        timeFact(revision.created_at),
        h("code", { class: "dim" }, revision.revision_id),
        h("span", { class: "space" }),
        this.#rollBackButton(revision, index),
      ),
      difference(revision, isLast ? revision : before),
      this.#origin(revision),
      notes(revision),
    );
  }

  #rollBackButton(revision, index) {
    const isNow = index === 0 && this.memory !== null;
    if (!this.options.mayChange || isNow || revision.memory === null) return null;
    const act = () => askToRollBack(this.path, revision, this.memory, this.options.onChange);
    return h("button", { type: "button", onclick: act }, icon("back"), "Roll back to this");
  }

  /** Where a revision came from is read once. */
  #origin(revision) {
    const { revision_id: id, run_id: runId } = revision;
    if (runId === null) return h("p", { class: "dim" }, "Changed directly, not by a run");
    if (!this.#origins.has(id)) this.#origins.set(id, originOf(revision, this.#controller.signal));
    return this.#origins.get(id);
  }
}

function difference(revision, before) {
  const parts = [];
  if (revision.memory === null) return h("p", { class: "dim" }, "The memory was deleted.");
  const old = before?.memory ?? null;
  parts.push(wordDifference(old === null ? revision.fact : old.fact, revision.fact, "Fact"));
  for (const field of FIELDS) {
    const [was, is] = [old?.[field], revision.memory[field]].map(textOf);
    if (old !== null && was !== is) {
      parts.push(
        h("p", { class: "revision-field" }, h("span", { class: "dim" }, `${field.replace("_", " ")} `)),
      );
      parts.at(-1).append(wordDifference(was, is, field));
    }
  }
  return parts;
}

/** The revision before this one that has content: a deletion has none. */
function earlierOf(revisions, index) {
  return revisions.slice(index + 1).find(({ memory }) => memory !== null);
}

function textOf(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

function notes({ extracted, labels, rolled_back_to: target, expires_at: expiresAt }) {
  const texts = Object.entries(labels).map(([key, value]) => `${key}: ${value}`);
  return h(
    "div",
    { class: "revision-notes dim" },
    target && h("p", {}, "to the revision ", h("code", {}, target)),
    extracted.length > 0 &&
      h(
        "details",
        {},
        h("summary", {}, "Extracted from a conversation"),
        jsonBlock(extracted, { label: "Extracted" }),
      ),
    texts.length > 0 && h("p", {}, texts.join(", ")),
    h("p", {}, `kept until ${fullTime(expiresAt)}`),
  );
}
