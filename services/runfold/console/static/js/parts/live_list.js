/** Entries of a list of the API, loaded page by page while the reader scrolls, and kept up to date. */

import { getJson } from "../http.js";
import { poll } from "../streams.js";

/** The pause of a search by words, which may read all entries. */
const SEARCH_MILLISECONDS = 30_000;

/**
 * @typedef {object} Source
 * @property {string} path such as `v1/runs`
 * @property {string} member the entries' name in the answer
 * @property {(row: any) => string} idOf
 * @property {(row: any) => string} timeOf the time by which the answer is sorted, the newest first
 * @property {(before: any, after: any) => boolean} isSame whether both say the same
 * @property {number} page how many entries one request reads
 * @property {number} milliseconds the pause between two requests of the newest entries
 */

/** Loads and polls until `close`. */
export class LiveList {
  #cursor = null;
  #older = [];
  #turn = 0;
  #loading = null;
  #end = null;

  /**
   * @param {Source} source
   * @param {Record<string, any>} filters the parameters of the request
   * @param {object} options
   * @param {(rows: object[], isWhole: boolean) => void} options.onRows
   * @param {(error: Error | null) => void} options.onError null after a success
   */
  constructor(source, filters, { onRows, onError }) {
    this.source = source;
    this.filters = filters;
    this.onRows = onRows;
    this.onError = onError;
    this.rows = [];
    this.isWhole = false;
    const pause = filters.text ? SEARCH_MILLISECONDS : source.milliseconds;
    this.#end = poll((signal) => this.#refresh(signal), pause);
  }

  /** Ends the requests. */
  close() {
    this.#end();
    this.#loading?.abort();
  }

  /** Loads the next page, unless it is being loaded or there is none. */
  async loadMore() {
    if (this.#loading !== null || this.#cursor === null) return;
    this.#loading = new AbortController();
    try {
      const { idOf, member } = this.source;
      const place = { cursor: this.#cursor, after: idOf(this.rows.at(-1)) };
      const page = await this.#page(this.#cursor, this.#loading.signal);
      this.#older.push(place);
      this.#cursor = page.next_cursor;
      this.isWhole = page.next_cursor === null;
      const known = new Set(this.rows.map(idOf));
      this.#show([...this.rows, ...page[member].filter((row) => !known.has(idOf(row)))]);
    } catch (error) {
      if (error.name !== "AbortError") this.onError(error);
    }
    this.#loading = null;
  }

  async #refresh(signal) {
    try {
      const page = await this.#page(null, signal);
      this.onError(null);
      this.#merge(page);
      if (this.#older.length > 0) await this.#refreshOlder(signal);
    } catch (error) {
      if (error.name !== "AbortError") this.onError(error);
      throw error;
    }
  }

  /** Reads one of the older pages again, each in its turn. */
  async #refreshOlder(signal) {
    const { idOf, member } = this.source;
    this.#turn = (this.#turn + 1) % this.#older.length;
    const { cursor, after } = this.#older[this.#turn];
    const page = await this.#page(cursor, signal);
    const rows = new Map(this.rows.map((row) => [idOf(row), row]));
    const ids = [...rows.keys()];
    const begin = ids.indexOf(after) + 1;
    const last = page[member].at(-1);
    const end = page.next_cursor === null ? ids.length : ids.indexOf(last && idOf(last)) + 1;
    if (begin === 0 || end < begin) return;
    const fresh = page[member].map((row) => this.#unchanged(rows.get(idOf(row)), row));
    this.#show([...this.rows.slice(0, begin), ...fresh, ...this.rows.slice(end)]);
  }

  #page(cursor, signal) {
    const { path, page } = this.source;
    return getJson(path, { ...this.filters, limit: page, cursor }, { signal });
  }

  /** The newest page stands for all rows as new as its last one; older rows stay. */
  #merge(page) {
    const { idOf, member } = this.source;
    const before = new Map(this.rows.map((row) => [idOf(row), row]));
    const newest = page[member].map((row) => this.#unchanged(before.get(idOf(row)), row));
    const ids = new Set(newest.map(idOf));
    const last = newest.at(-1);
    const older =
      page.next_cursor === null
        ? []
        : this.rows.filter((row) => !ids.has(idOf(row)) && this.#isBehind(row, last));
    if (older.length === 0) {
      this.#older = [];
      this.#cursor = page.next_cursor;
      this.isWhole = page.next_cursor === null;
    }
    this.#show([...newest, ...older]);
  }

  /** The row from before if it says the same, so that the table does not draw it again. */
  #unchanged(before, row) {
    return before !== undefined && this.source.isSame(before, row) ? before : row;
  }

  #isBehind(row, last) {
    const { timeOf } = this.source;
    return (timeOf(row) ?? "") <= (timeOf(last) ?? "");
  }

  #show(rows) {
    this.rows = rows;
    this.onRows(rows, this.isWhole);
  }
}
