/** Small tables, of which all rows are in the page. On a phone each row is a list of its cells. */

import { h } from "../dom.js";

/**
 * @typedef {object} PlainColumn
 * @property {string} title
 * @property {(row: any) => any} cell
 * @property {boolean} [isNumber]
 * @property {any} [head] stands in the head of the table instead of the title
 * @property {string | null} [order] `ascending` or `descending`, if the rows are sorted by the column
 *
 * @param {string} label what the table is, for screen readers
 * @param {PlainColumn[]} columns the first one has the name of the row
 * @param {object[]} rows
 * @returns {HTMLElement}
 */
export function plainTable(label, columns, rows) {
  const classOf = (column) => (column.isNumber ? "number" : null);
  const titles = columns.map((column) =>
    h(
      "th",
      { scope: "col", role: "columnheader", class: classOf(column), "aria-sort": column.order },
      column.head ?? column.title,
    ),
  );
  const cellOf = (column, number, row) =>
    h(
      number ? "td" : "th",
      {
        class: classOf(column),
        role: number ? "cell" : "rowheader",
        scope: number ? null : "row",
        "data-title": column.title,
      },
      h("div", {}, column.cell(row)),
    );
  // Cells that are blocks on a phone lose their roles, so all have them explicitly.
  return h(
    "table",
    { class: "plain", role: "table", "aria-label": label },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, titles)),
    h(
      "tbody",
      { role: "rowgroup" },
      rows.map((row) =>
        h(
          "tr",
          { role: "row" },
          columns.map((column, number) => cellOf(column, number, row)),
        ),
      ),
    ),
  );
}
