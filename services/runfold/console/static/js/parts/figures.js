/** The few numbers of a page that matter most, in large type. */

import { h } from "../dom.js";

/**
 * @typedef {{name: string, value: any, more?: any, tone?: "bad" | "odd"}} Figure
 *
 * @param {Figure[]} figures `more` stands below the value
 * @returns {HTMLElement}
 */
export function figureList(figures) {
  return h(
    "dl",
    { class: "figures" },
    figures.map(({ name, value, more, tone }) =>
      h(
        "div",
        {},
        h("dt", {}, name),
        h("dd", { class: tone ?? null }, value),
        more && h("dd", { class: "more" }, more),
      ),
    ),
  );
}
