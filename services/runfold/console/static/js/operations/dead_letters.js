/** Records that could not be decoded: listed, shown, and published again. */

import { h } from "../dom.js";
import { bytes, integer } from "../format.js";
import { getJson } from "../http.js";
import { timeFact } from "../parts/facts.js";
import { plainTable } from "../parts/plain_table.js";
import { Problem } from "../parts/problem.js";
import { Section } from "../parts/section.js";
import { linkTo } from "../router.js";
import { showLetter } from "./letter_dialog.js";

const LIMIT = 25;

/** The section of dead letters. */
export class DeadLettersPart {
  #count = null;
  #rows = [];
  #cursor = null;

  constructor() {
    this.problem = new Problem();
    this.section = new Section("Dead letters", (data) => this.#draw(data));
    this.element = this.section.element;
  }

  /**
   * Reads the newest dead letters again if their number has changed.
   * @param {number | null} count null while Kafka does not answer
   */
  async update(count, signal) {
    if (count === null || count === this.#count) return;
    await this.#read(null, signal);
    this.#count = count;
  }

  async #read(cursor, signal) {
    const page = await getJson("v1/dead-letters", { limit: LIMIT, cursor }, { signal });
    this.#rows = cursor === null ? page.dead_letters : [...this.#rows, ...page.dead_letters];
    this.#cursor = page.next_cursor;
    this.#show();
  }

  #show() {
    this.section.show({ rows: this.#rows, hasMore: this.#cursor !== null });
  }

  #draw({ rows, hasMore }) {
    if (rows.length === 0) return h("p", { class: "dim" }, "Every record could be decoded.");
    const columns = [
      { title: "Record", cell: placeOf },
      { title: "Reason", cell: (letter) => letter.reason },
      { title: "Since", cell: (letter) => timeFact(letter.buried_at) },
      { title: "Size", isNumber: true, cell: (letter) => bytes(letter.bytes) },
      { title: "Published again", cell: requeuedTo },
      { title: "Actions", cell: (letter) => this.#button(letter) },
    ];
    const more = h("button", { type: "button", onclick: () => this.#readMore() }, "Show older ones");
    return [this.problem.element, plainTable("Dead letters", columns, rows), hasMore && more];
  }

  #button(letter) {
    const open = () =>
      this.problem
        .watch(() => showLetter(letter.id, (requeued) => this.#replace(requeued)))
        .catch(() => null);
    return h(
      "button",
      { type: "button", onclick: open },
      "Show",
      h("span", { class: "unseen" }, ` ${letter.id}`),
    );
  }

  #readMore() {
    return this.problem.watch(() => this.#read(this.#cursor)).catch(() => null);
  }

  #replace(letter) {
    this.#rows = this.#rows.map((each) => (each.id === letter.id ? letter : each));
    this.#show();
  }
}

function placeOf({ topic, run_id: runId, partition, offset }) {
  if (runId !== null) {
    return [h("a", { href: linkTo(["runs", runId], { offset }) }, runId), ` at ${integer(offset)}`];
  }
  return `${topic}, partition ${integer(partition)}, offset ${integer(offset)}`;
}

function requeuedTo({ requeued }) {
  if (requeued === null) return "no";
  const { run_id: runId, offset } = requeued;
  return h("a", { href: linkTo(["runs", runId], { offset }) }, `at ${integer(offset)}`);
}
