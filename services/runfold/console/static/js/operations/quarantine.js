/** What is in quarantine, with the two ways out of it. */

import { h } from "../dom.js";
import { integer, NOTHING } from "../format.js";
import { change, getJson, part } from "../http.js";
import { ask } from "../parts/dialog.js";
import { timeFact } from "../parts/facts.js";
import { plainTable } from "../parts/plain_table.js";
import { Problem } from "../parts/problem.js";
import { Section } from "../parts/section.js";
import { linkTo } from "../router.js";

const PAGE = 100;

/** The section of the quarantine. */
export class QuarantinePart {
  #asked = new Map();
  #entries = [];
  #count = 0;
  #limit = PAGE;

  constructor() {
    this.problem = new Problem();
    this.section = new Section("Quarantine", (data) => this.#draw(data));
    this.element = this.section.element;
  }

  /**
   * Reads the entries if there are any.
   * @param {number} count how many there are
   */
  async update(count, signal) {
    this.#count = count;
    this.#entries = count === 0 ? [] : await firstEntries(this.#limit, signal);
    this.#show();
  }

  /** Keeps showing as many in later updates. */
  async #loadMore() {
    this.#limit += PAGE;
    const load = async () => {
      this.#entries = await firstEntries(this.#limit);
      this.#show();
    };
    await this.problem.watch(load).catch(() => null);
  }

  #show() {
    // An entry that was tried again has one attempt more, and may be asked for once more.
    const rows = this.#entries.map((entry) => ({
      ...entry,
      asked: this.#asked.get(requestOf(entry)) ?? null,
    }));
    this.section.show({ rows, further: Math.max(0, this.#count - rows.length) });
  }

  #draw({ rows, further }) {
    if (rows.length === 0) {
      return h("p", { class: "dim" }, "Nothing is set aside. Whatever fails to fold is listed here.");
    }
    const columns = [
      { title: "Entry", cell: entryName },
      { title: "Reason", cell: (entry) => entry.reason },
      { title: "Records", cell: recordsOf },
      { title: "Since", cell: (entry) => timeFact(entry.since) },
      { title: "Attempts", isNumber: true, cell: (entry) => integer(entry.attempts) },
      { title: "Actions", cell: (entry) => this.#actions(entry) },
    ];
    return [
      this.problem.element,
      plainTable("Quarantine", columns, rows),
      further > 0 &&
        h(
          "p",
          { class: "actions" },
          h("button", { type: "button", onclick: () => this.#loadMore() }, "Show more"),
          `${integer(further)} further`,
        ),
    ];
  }

  #actions(entry) {
    if (entry.asked !== null) return h("span", { class: "dim", role: "status" }, entry.asked);
    const name = h("span", { class: "unseen" }, ` ${entry.id}`);
    const retry = h("button", { type: "button", onclick: () => this.#retry(entry) }, "Retry", name);
    const skip = h(
      "button",
      { type: "button", onclick: () => this.#askToSkip(entry) },
      "Skip…",
      name.cloneNode(true),
    );
    return h("div", { class: "actions" }, retry, entry.next_offset > entry.offset && skip);
  }

  #retry(entry) {
    const send = async () => {
      await change("POST", `v1/quarantine/${part(entry.id)}/retry`);
      this.#note(entry, "asked to fold again…");
    };
    return this.problem.watch(send).catch(() => null);
  }

  #askToSkip(entry) {
    const act = async () => {
      await change("POST", `v1/quarantine/${part(entry.id)}/skip`, { offset: entry.offset });
      this.#note(entry, "skipped…");
    };
    ask(
      { title: "Skip these records for good", action: "Skip", act },
      h("p", {}, h("span", { class: "mono" }, entry.id), `: ${entry.reason}`),
      h(
        "p",
        {},
        `${recordsOf(entry)} of ${entry.topic}, partition ${entry.partition}, will count for nothing,`,
        " for every reader and for ever. The log keeps them.",
      ),
    );
  }

  #note(entry, text) {
    this.#asked.set(requestOf(entry), text);
    this.#show();
  }
}

async function firstEntries(limit, signal) {
  const entries = [];
  let cursor;
  do {
    const page = await getJson("v1/quarantine", { limit: PAGE, cursor }, { signal });
    entries.push(...page.quarantine);
    cursor = page.next_cursor;
  } while (cursor && entries.length < limit);
  return entries;
}

function requestOf({ id, offset, attempts }) {
  return JSON.stringify([id, offset, attempts]);
}

function entryName({ id, kind }) {
  if (kind !== "run") return id;
  return h("a", { href: linkTo(["runs", id.slice("run:".length)]) }, id);
}

function recordsOf({ offset, next_offset: next }) {
  if (next === offset) return NOTHING;
  return next === offset + 1
    ? `Offset ${integer(offset)}`
    : `Offsets ${integer(offset)} to ${integer(next - 1)}`;
}
