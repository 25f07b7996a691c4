/** A small table that its reader sorts: a click on a title sorts by it, another one turns the order. */

import { h, fill } from "../dom.js";
import { plainTable } from "./plain_table.js";

/** Keeps the reader's order when its rows change. */
export class SortedTable {
  #rows = [];
  #isAscending = false;

  /**
   * @param {string} label what the table is, for screen readers
   * @param {(import("./plain_table.js").PlainColumn & {value?: (row: any) => number | string | null})[]}
   *   columns those with a `value` sort; rows without one are the last
   * @param {string} title of the column by which the rows are sorted at first, the largest first
   */
  constructor(label, columns, title) {
    this.label = label;
    this.columns = columns;
    this.column = columns.find((column) => column.title === title);
    this.element = h("div", { class: "sorted" });
  }

  /** Shows these rows. */
  show(rows) {
    this.#rows = rows;
    this.#draw();
  }

  #draw() {
    const order = this.#isAscending ? "ascending" : "descending";
    const columns = this.columns.map((column) => ({
      ...column,
      order: column === this.column ? order : null,
      head: column.value && this.#button(column),
    }));
    fill(this.element, plainTable(this.label, columns, this.#sorted()));
  }

  #button(column) {
    const sort = () => {
      this.#isAscending = column === this.column ? !this.#isAscending : !column.isNumber;
      this.column = column;
      this.#draw();
      this.element.querySelector("[aria-sort] button").focus({ preventScroll: true });
    };
    return h("button", { type: "button", class: "sort", onclick: sort }, column.title);
  }

  #sorted() {
    const sign = this.#isAscending ? 1 : -1;
    const { value } = this.column;
    return this.#rows.toSorted((a, b) => {
      const [first, second] = [value(a), value(b)];
      if (first === null || second === null) return (first === null) - (second === null);
      return sign * (typeof first === "string" ? first.localeCompare(second) : first - second);
    });
  }
}
