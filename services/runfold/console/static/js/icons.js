/** Icons as SVG of ours, drawn on 16 by 16. They are decoration: a text stands beside each. */

import { svg } from "./dom.js";

const PATHS = {
  pending: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11",
  running: "M8 2.5a5.5 5.5 0 1 1-5.5 5.5M8 5v3l2 1.5",
  open: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M8 7v2",
  paused: "M5.5 4v8M10.5 4v8",
  completed: "M3 8.5 6.5 12 13 4.5",
  failed: "m4 4 8 8m0-8-8 8",
  canceled: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M4.2 4.2l7.6 7.6",
  sun: "M8 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1",
  moon: "M13 9.5A5.5 5.5 0 1 1 6.5 3 4.5 4.5 0 0 0 13 9.5",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9M10.5 10.5 14 14",
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
  close: "m4 4 8 8m0-8-8 8",
  back: "M9.5 3 4.5 8l5 5",
  fold: "m4 6 4 4 4-4",
  warning: "M8 2 14.5 13.5h-13zM8 6.5V9.5M8 11.4v.2",
  fork: "M5 2.5v11M5 9.5c6 0 6-2 6-4.5M3.5 2.5h3M9.5 4.5 11 3l1.5 1.5",
  out: "M6 2.5H3v11h3M9.5 5l3 3-3 3M12.5 8H6",
  user: "M8 2.5a2.5 2.5 0 1 1 0 5 2.5 2.5 0 0 1 0-5M3 13.5c0-3 2-4.5 5-4.5s5 1.5 5 4.5",
  assistant: "M3 3.5h10v7H8l-3 3v-3H3z",
  system: "M2.5 4h11M2.5 8h7M2.5 12h9",
  thinking: "M8 2.5c3 0 5 1.7 5 4s-2 4-5 4-5-1.7-5-4 2-4 5-4M6 12.2h.1M4 13.8h.1",
  tool: "M10 2.5a3.5 3.5 0 0 0-3.3 4.7L2.5 11.4l2.1 2.1 4.2-4.2A3.5 3.5 0 0 0 13.5 6l-2 2-2-.5-.5-2 2-2z",
  state: "M3 4c0-2 10-2 10 0v8c0 2-10 2-10 0zM3 4c0 2 10 2 10 0",
  note: "M3.5 2.5h9v11h-9zM5.5 6h5M5.5 9h3",
  signature: "M2.5 12.5h11M3 9.5c2-6 5-7 5-4s-3 5-1 5 2-3 3-3 0 2 3 1",
};

/**
 * @param {string} name a key of PATHS
 * @returns {SVGElement}
 */
export function icon(name) {
  return svg(
    "svg",
    { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" },
    svg("path", { d: PATHS[name] }),
  );
}
