/** Charts as SVG. Each has a sentence for readers who do not see it, and each bar a title. */

import { h, svg } from "../dom.js";

const STEP = 10;
const GAP = 2;
const HEIGHT = 100;
const HEIGHT_MIN = 2;

/**
 * A bar. `bad` is the part of the value that is shown as failed.
 * @typedef {{title: string, value: number, bad?: number}} Bar
 *
 * Bars without axes.
 * @param {Bar[]} bars
 * @param {string} label says what the chart shows, for screen readers
 * @returns {SVGElement}
 */
export function bars(bars, label) {
  const max = Math.max(1, ...bars.map((bar) => bar.value));
  return svg(
    "svg",
    {
      class: "bars",
      viewBox: `0 0 ${bars.length * STEP} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    bars.map((bar, index) => column(bar, index * STEP, max)),
  );
}

function column({ title, value, bad = 0 }, x, max) {
  const heightOf = (part) => (part ? Math.max(HEIGHT_MIN, (part / max) * HEIGHT) : 0);
  const all = heightOf(value);
  const rectangle = (name, height, y) =>
    height > 0 && svg("rect", { class: name, x: x + GAP / 2, y, width: STEP - GAP, height });
  const low = heightOf(bad);
  return svg(
    "g",
    {},
    svg("title", {}, title),
    svg("rect", { class: "room", x, y: 0, width: STEP, height: HEIGHT }),
    rectangle("bar", all - low, HEIGHT - all),
    rectangle("bar-bad", low, HEIGHT - low),
  );
}

/**
 * Bars with their largest value and the ends of their axis.
 * @param {Bar[]} values
 * @param {{label: string, max: string, first: string, last: string}} texts `max` is the largest value,
 *   `first` and `last` stand below the first bar and the last one
 * @returns {HTMLElement}
 */
export function chart(values, { label, max, first, last }) {
  return h(
    "div",
    { class: "chart" },
    h("p", { class: "axis", "aria-hidden": "true" }, max),
    bars(values, label),
    h("p", { class: "axis", "aria-hidden": "true" }, h("span", {}, first), h("span", {}, last)),
  );
}
