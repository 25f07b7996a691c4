/** Values of events as text that can be read and copied. */

import { h } from "../dom.js";
import { bytes } from "../format.js";
import { copyButton } from "./copy.js";

const LENGTH_MAX = 200_000;

/**
 * @param {any} value
 * @param {{label: string}} options says what the value is, for screen readers
 * @returns {HTMLElement} the value as indented JSON, with a button that copies all of it
 */
export function jsonBlock(value, { label }) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return textBlock(text ?? "null", { label });
}

/**
 * @param {string} text
 * @param {{label: string}} options
 * @returns {HTMLElement} the text as it is, with a button that copies all of it
 */
export function textBlock(text, { label }) {
  const isCut = text.length > LENGTH_MAX;
  return h(
    "div",
    { class: "block" },
    h(
      "pre",
      { tabindex: "0", role: "region", "aria-label": label },
      isCut ? text.slice(0, LENGTH_MAX) : text,
    ),
    isCut &&
      h("p", { class: "dim" }, `The rest of ${bytes(text.length)} is left out here. Copy has all of it.`),
    copyButton("Copy", () => text),
  );
}
