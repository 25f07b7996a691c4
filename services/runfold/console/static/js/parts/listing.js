/** The page of a list: filters, a table that follows the API, and a line that says how much there is. */

import "./table.js";
import { h, fill } from "../dom.js";
import { integer } from "../format.js";
import { LiveList } from "./live_list.js";

/**
 * @typedef {object} ListingOptions
 * @property {string} title the heading, for screen readers
 * @property {Omit<import("./table.js").TableOptions, "onNearEnd">} table
 * @property {(rows: object[]) => string} noun says what the rows are, such as `3 runs`, without the number
 * @property {(rows: object[]) => string} [more] goes on behind the count
 * @property {() => any} emptyContent stands in place of a table without rows
 * @property {any} [tools] stand beside the count
 */

/** A command that a reader may copy into a terminal. */
export function commandBlock(text) {
  return h("pre", { tabindex: "0", role: "region", "aria-label": "Command" }, text);
}

/** Fills a view, and loads its rows until `close`. */
export class Listing {
  #source = null;
  #once = null;

  /**
   * @param {HTMLElement} host
   * @param {ListingOptions} options
   */
  constructor(host, options) {
    this.options = options;
    host.classList.add("listing");
    this.filters = h("div", { class: "filters" });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.table = h("rf-table");
    this.empty = h("div", { class: "empty", hidden: true });
    this.note = h("p", { role: "status" });
    const end = h("div", { class: "note" }, this.note, options.tools);
    fill(
      host,
      h("h1", { class: "unseen" }, options.title),
      this.filters,
      this.problem,
      this.table,
      this.empty,
      end,
    );
    this.table.options = { ...options.table, onNearEnd: () => this.#source?.loadMore() };
  }

  /** The rows that are loaded. */
  get rows() {
    return this.table.rows;
  }

  /**
   * Shows the entries of a list, and keeps them up to date.
   * @param {import("./live_list.js").Source} source
   * @param {Record<string, any>} filters
   */
  follow(source, filters) {
    this.close();
    this.#source = new LiveList(source, filters, {
      onRows: (rows, isWhole) => this.#show(rows, isWhole),
      onError: (error) => this.tell(error),
    });
  }

  /**
   * Shows the rows of one answer.
   * @param {(signal: AbortSignal) => Promise<object[]>} read
   */
  async showOnce(read) {
    this.close();
    const controller = new AbortController();
    this.#once = controller;
    try {
      const rows = await read(controller.signal);
      if (controller.signal.aborted) return;
      this.tell(null);
      this.#show(rows, true);
    } catch (error) {
      if (!controller.signal.aborted) this.tell(error);
    }
  }

  /** Shows an error; null hides it. */
  tell(error) {
    this.problem.hidden = error === null;
    if (error !== null) this.problem.textContent = error.message;
  }

  /** Ends the requests. */
  close() {
    this.#source?.close();
    this.#source = null;
    this.#once?.abort();
  }

  #show(rows, isWhole) {
    const { noun, more, emptyContent } = this.options;
    this.table.rows = rows;
    const count = `${integer(rows.length)}${isWhole ? "" : "+"} ${noun(rows)}`;
    this.note.textContent = more ? `${count}, ${more(rows)}` : count;
    this.table.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    if (rows.length === 0) fill(this.empty, emptyContent());
  }
}
