/** A part of a page that is drawn anew when what it shows has changed, and only then. */

import { h, fill } from "../dom.js";

const CONTROLS = "a, button, summary";

let count = 0;

/** Keeps the reader's focus and open details when it is drawn anew. */
export class Section {
  #shown = null;

  /**
   * @param {string} title
   * @param {(data: any) => any} draw returns children for `fill`
   */
  constructor(title, draw) {
    count += 1;
    const id = `section-${count}`;
    this.draw = draw;
    this.body = h("div", {});
    this.element = h(
      "section",
      { class: "section", "aria-labelledby": id },
      h("h2", { id }, title),
      this.body,
    );
  }

  /**
   * Shows the data. A section without data is hidden.
   * @param {any} data can be written as JSON; null hides the section
   */
  show(data) {
    const text = JSON.stringify(data);
    if (text === this.#shown) return;
    this.#shown = text;
    this.element.hidden = data === null;
    const focus = this.body.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    const open = [...this.body.querySelectorAll("details[open] > summary")].map(nameOf);
    fill(this.body, data === null ? null : this.draw(data));
    for (const control of this.body.querySelectorAll(CONTROLS)) {
      if (open.includes(nameOf(control))) control.parentElement.open = true;
      if (focus !== null && nameOf(control) === focus) control.focus({ preventScroll: true });
    }
  }
}

function nameOf(control) {
  return `${control.localName} ${control.textContent}`;
}
