/** A part of a page whose content is fetched: it says that it waits, shows the result or the error. */

import { h, fill } from "../dom.js";

/** Fetches again whenever `load` is called; only the last call counts. */
export class Loaded {
  #controller = null;

  constructor() {
    this.element = h("div", { class: "loaded", "aria-live": "polite" });
  }

  /**
   * @param {(signal: AbortSignal) => Promise<any>} fetchContent returns children for `fill`
   */
  async load(fetchContent) {
    this.#controller?.abort();
    const controller = new AbortController();
    this.#controller = controller;
    this.element.classList.add("waits");
    try {
      const content = await fetchContent(controller.signal);
      if (!controller.signal.aborted) fill(this.element, content);
    } catch (error) {
      if (!controller.signal.aborted)
        fill(this.element, h("p", { class: "problem", role: "alert" }, error.message));
    }
    if (!controller.signal.aborted) this.element.classList.remove("waits");
  }

  /** Ends the request. */
  close() {
    this.#controller?.abort();
  }
}
