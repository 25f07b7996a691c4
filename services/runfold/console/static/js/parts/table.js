/**
 * A table of any number of rows of one height, of which only the visible ones are in the page.
 * Arrow keys, Home and End move between rows; screen readers get the whole count.
 */

import { h, fill } from "../dom.js";

const MARGIN_ROWS = 12;
const NEAR_END_ROWS = 60;

/**
 * @typedef {object} Column
 * @property {string} name names the column in CSS: `col-{name}`
 * @property {string} title
 * @property {(row: any) => Node | string | null} cell
 *
 * @typedef {object} TableOptions
 * @property {string} label what the table is, for screen readers
 * @property {Column[]} columns
 * @property {(row: any) => string} idOf
 * @property {(row: any) => string} linkOf where a click on the row leads; the first cell is the link
 * @property {() => void} [onNearEnd] is called when the reader comes near the last row
 */

/** `<rf-table>`: give it `options` once, and `rows` as often as they change. */
class VirtualTable extends HTMLElement {
  #options = null;
  #rows = [];
  #shown = new Map();
  #frame = 0;

  /** @param {TableOptions} options */
  set options(options) {
    this.#options = options;
    this.body = h("div", { class: "table-body", role: "rowgroup" });
    const titles = options.columns.map(({ name, title }) =>
      h("div", { role: "columnheader", class: `cell col-${name}` }, title),
    );
    const head = h(
      "div",
      { class: "table-head", role: "rowgroup" },
      h("div", { role: "row", class: "row" }, titles),
    );
    this.table = h("div", { role: "table", "aria-label": options.label, class: "table" }, head, this.body);
    fill(this, this.table);
    this.addEventListener("scroll", () => this.#schedule(), { passive: true });
    this.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(() => this.#resize()).observe(this);
  }

  /**
   * The rows, in their order. A row that is another object than before is drawn again. While the
   * reader has scrolled down, new rows above do not move what is in view.
   */
  set rows(rows) {
    const anchor =
      this.scrollTop > this.rowHeight ? this.#rows[Math.floor(this.scrollTop / this.rowHeight)] : null;
    const before = anchor && this.#rows.indexOf(anchor);
    this.#rows = rows;
    this.table.setAttribute("aria-rowcount", rows.length + 1);
    this.body.style.height = `${rows.length * this.rowHeight}px`;
    if (anchor) {
      const id = this.#options.idOf(anchor);
      const after = rows.findIndex((row) => this.#options.idOf(row) === id);
      if (after > before) this.scrollTop += (after - before) * this.rowHeight;
    }
    this.#draw();
  }

  get rows() {
    return this.#rows;
  }

  get rowHeight() {
    return (this.height ??= Number.parseFloat(getComputedStyle(this).getPropertyValue("--row-height")) || 36);
  }

  #resize() {
    this.height = null;
    this.body.style.height = `${this.#rows.length * this.rowHeight}px`;
    for (const { element } of this.#shown.values()) element.remove();
    this.#shown.clear();
    this.#draw();
  }

  #schedule() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #draw() {
    const first = Math.max(0, Math.floor(this.scrollTop / this.rowHeight) - MARGIN_ROWS);
    const end = Math.min(
      this.#rows.length,
      Math.ceil((this.scrollTop + this.clientHeight) / this.rowHeight) + MARGIN_ROWS,
    );
    const shown = new Map();
    for (let index = first; index < end; index += 1) {
      const row = this.#rows[index];
      const id = this.#options.idOf(row);
      shown.set(id, this.#placed(id, row, index));
    }
    for (const [id, { element }] of this.#shown) if (!shown.has(id)) element.remove();
    this.#shown = shown;
    if (end > this.#rows.length - NEAR_END_ROWS) this.#options.onNearEnd?.();
  }

  #placed(id, row, index) {
    let entry = this.#shown.get(id);
    if (entry?.row !== row) {
      const element = entry?.element ?? h("div", { role: "row", class: "row" });
      const hadFocus = element.contains(document.activeElement);
      fill(element, this.#cells(row));
      if (entry === undefined) {
        element.addEventListener("click", (event) => this.#open(event, element));
        this.body.append(element);
      }
      if (hadFocus) element.querySelector("a").focus({ preventScroll: true });
      entry = { element, row, index: -1 };
    }
    if (entry.index !== index) {
      entry.index = index;
      entry.element.setAttribute("aria-rowindex", index + 2);
      entry.element.style.transform = `translateY(${index * this.rowHeight}px)`;
    }
    return entry;
  }

  #cells(row) {
    return this.#options.columns.map(({ name, cell }, number) => {
      const content = cell(row);
      const inner = number
        ? content
        : h("a", { href: this.#options.linkOf(row), class: "row-link" }, content);
      return h("div", { role: "cell", class: `cell col-${name}` }, inner);
    });
  }

  #open(event, element) {
    const hasSelection = getSelection().toString() !== "";
    if (!hasSelection && event.target.closest("a, button") === null) element.querySelector("a").click();
  }

  #move(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || event.target.closest(".table-body") === null) return;
    event.preventDefault();
    const index = Number(event.target.closest(".row").getAttribute("aria-rowindex")) - 2;
    const wanted = Math.max(0, Math.min(this.#rows.length - 1, index + steps[event.key]));
    const top = wanted * this.rowHeight;
    const head = this.body.offsetTop;
    if (top < this.scrollTop) this.scrollTop = top;
    else if (top + this.rowHeight + head > this.scrollTop + this.clientHeight) {
      this.scrollTop = top + this.rowHeight + head - this.clientHeight;
    }
    this.#draw();
    const entry = this.#shown.get(this.#options.idOf(this.#rows[wanted]));
    entry?.element.querySelector("a").focus({ preventScroll: true });
  }
}

customElements.define("rf-table", VirtualTable);
