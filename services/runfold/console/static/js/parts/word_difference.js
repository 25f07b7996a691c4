/** The difference of two texts by words, as a text with what is removed and what is added. */

import { diffWords } from "../diff.js";
import { h } from "../dom.js";

const ELEMENTS = { same: "span", removed: "del", added: "ins" };

/**
 * @param {string} before
 * @param {string} after
 * @param {string} label says what the text is, for screen readers
 * @returns {HTMLElement}
 */
export function wordDifference(before, after, label) {
  const pieces = diffWords(before, after).map(({ kind, text }) => h(ELEMENTS[kind], {}, text));
  return h("span", { class: "words", role: "group", "aria-label": label }, pieces);
}
