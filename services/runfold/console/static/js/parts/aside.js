/** The part of a page beside its main one. On a phone it opens over the page. */

import { h } from "../dom.js";
import { icon } from "../icons.js";

/**
 * @param {HTMLElement} content
 * @param {() => void} [onClose] is called when the reader closes it on a phone
 * @returns {{element: HTMLElement, button: HTMLElement, open: () => void}} `button` opens it
 */
export function aside(content, onClose) {
  const open = () => element.classList.add("is-open");
  const close = h(
    "button",
    {
      type: "button",
      class: "quiet close",
      "aria-label": "Close",
      onclick: () => {
        element.classList.remove("is-open");
        (onClose ?? (() => button.focus()))();
      },
    },
    icon("close"),
  );
  const element = h("aside", { "aria-label": "Details" }, close, content);
  const button = h("button", { type: "button", class: "quiet details", onclick: open }, "Details");
  return { element, button, open };
}
