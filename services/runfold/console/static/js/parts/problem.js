/** The line of a page that says why something did not work. It is hidden while there is nothing. */

import { h } from "../dom.js";

/** Shows the error of what it watches, until the next success. */
export class Problem {
  constructor() {
    this.element = h("p", { class: "problem", role: "alert", hidden: true });
  }

  /** Shows an error; null hides it. */
  tell(error) {
    this.element.hidden = error === null;
    if (error !== null) this.element.textContent = error.message;
  }

  /**
   * Awaits work, and throws as it does.
   * @param {() => Promise<void>} work
   */
  async watch(work) {
    try {
      await work();
      this.tell(null);
    } catch (error) {
      if (error.name !== "AbortError") this.tell(error);
      throw error;
    }
  }
}
