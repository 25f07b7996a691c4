/** Names and values, as in the head of a page or in a list of facts. */

import { h } from "../dom.js";
import { fullTime, time } from "../format.js";

/** A value with its name before it, for a line of facts; null without a value. */
export function fact(name, value) {
  return value ? h("span", { class: "fact" }, h("span", { class: "dim" }, `${name} `), value) : null;
}

/**
 * @param {Record<string, any>} values by name; empty ones are left out
 * @returns {HTMLElement}
 */
export function factList(values) {
  const shown = Object.entries(values).filter(([, value]) => value);
  return h(
    "dl",
    { class: "facts" },
    shown.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

/** A time, short, with the whole of it as the title. */
export function timeFact(value) {
  return value ? h("time", { datetime: value, title: fullTime(value) }, time(value)) : null;
}
