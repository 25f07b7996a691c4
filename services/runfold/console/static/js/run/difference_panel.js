/** What differs in the ledger, the state or the record of a run between two offsets. */

import { h } from "../dom.js";
import { diffLines } from "../diff.js";
import { integer } from "../format.js";
import { Loaded } from "../parts/loaded.js";
import { ledgerPath, read, recordPath, statePath } from "./as_of.js";

const CONTEXT_LINES = 3;

const SUBJECTS = {
  ledger: { title: "Ledger", pathOf: ledgerPath, valueOf: (answer) => answer.messages },
  state: { title: "State", pathOf: statePath, valueOf: (answer) => answer.state },
  record: { title: "Record", pathOf: recordPath, valueOf: (answer) => answer },
};

/** The panel of differences. The later offset is that of the slider. */
export class DifferencePanel {
  #loaded = new Loaded();

  constructor(runId) {
    this.runId = runId;
    this.subject = h(
      "select",
      { id: "difference-subject" },
      Object.entries(SUBJECTS).map(([name, { title }]) => h("option", { value: name }, title)),
    );
    this.from = h("input", { id: "difference-from", type: "number", min: 0, value: 0, inputmode: "numeric" });
    this.from.addEventListener("input", () => {
      this.isChosen = true;
    });
    for (const field of [this.subject, this.from])
      field.addEventListener("change", () => this.show(this.offset));
    this.element = h(
      "div",
      {},
      h(
        "div",
        { class: "panel-tools" },
        h("label", { for: "difference-subject" }, "Of the"),
        this.subject,
        h("label", { for: "difference-from" }, "since offset"),
        this.from,
      ),
      this.#loaded.element,
    );
  }

  /** The offset to compare with, unless the reader has chosen one. */
  set earlier(offset) {
    if (!this.isChosen) this.from.value = offset;
  }

  /** Shows the difference up to an offset; null means now. */
  show(offset) {
    this.offset = offset;
    const { pathOf, valueOf } = SUBJECTS[this.subject.value];
    const offsets = [Number(this.from.value) || 0, offset];
    return this.#loaded.load(async (signal) => {
      const answers = await Promise.all(
        offsets.map((each) => read(pathOf(this.runId, { offset: each }), signal)),
      );
      const [before, after] = answers.map((answer) => JSON.stringify(valueOf(answer), null, 2).split("\n"));
      return shownLines(diffLines(before, after));
    });
  }

  close() {
    this.#loaded.close();
  }
}

function shownLines(lines) {
  const changed = lines.flatMap(({ kind }, index) => (kind === "same" ? [] : [index]));
  if (changed.length === 0) return h("p", { class: "dim" }, "Nothing differs.");
  const near = new Set();
  for (const index of changed) {
    for (let each = index - CONTEXT_LINES; each <= index + CONTEXT_LINES; each += 1) near.add(each);
  }
  const shown = [];
  let hidden = 0;
  lines.forEach(({ kind, line }, index) => {
    if (!near.has(index)) {
      hidden += 1;
      return;
    }
    if (hidden) shown.push(h("span", { class: "hidden-lines" }, `${integer(hidden)} equal lines`));
    hidden = 0;
    shown.push(lineElement(kind, line));
  });
  if (hidden) shown.push(h("span", { class: "hidden-lines" }, `${integer(hidden)} equal lines`));
  return h("pre", { class: "difference", tabindex: "0", role: "region", "aria-label": "Difference" }, shown);
}

function lineElement(kind, line) {
  if (kind === "same") return h("span", {}, `  ${line}`);
  return h(kind === "added" ? "ins" : "del", {}, `${kind === "added" ? "+" : "−"} ${line}`);
}
