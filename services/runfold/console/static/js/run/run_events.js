/** The records of a run: its history in slices, and then the live stream. */

import { getJson, part } from "../http.js";
import { followRun, poll } from "../streams.js";

const FIRST_SLICE = 200;
const SLICE = 1000;
const PAUSE_AFTER = 20_000;
const RETRY_MILLISECONDS = 1000;

/** Answers that stay the same: the run does not exist, or the reader may not read it. */
const FINAL = new Set([400, 401, 403, 404, 422]);

/** Loads until `close`, again after an error. After 20,000 records it pauses until `loadMore`. */
export class RunEvents {
  #endLoading = null;
  #next = 0;
  #until = PAUSE_AFTER;
  #resume = null;
  #endStream = null;

  /**
   * @param {string} runId
   * @param {object} options
   * @param {(records: object[], end: number) => void} options.onRecords `end` is the end of the run
   * @param {(state: string) => void} options.onState `loading`, `paused`, `live`, `waiting`, ...
   * @param {(error: Error, isFinal: boolean) => void} options.onError
   * @param {() => Promise<boolean>} options.isLive whether the run goes on
   */
  constructor(runId, options) {
    this.runId = runId;
    this.options = options;
    this.#endLoading = poll(async (signal) => {
      try {
        await this.#load(signal);
      } catch (error) {
        if (error.name === "AbortError") throw error;
        const isFinal = FINAL.has(error.status);
        options.onError(error, isFinal);
        if (!isFinal) throw error;
      }
      this.#endLoading();
    }, RETRY_MILLISECONDS);
  }

  /** Ends all requests. */
  close() {
    this.#endLoading();
    this.#endStream?.();
  }

  /** Goes on after a pause. */
  loadMore() {
    this.#until = this.#next + PAUSE_AFTER;
    this.#resume?.();
  }

  async #load(signal) {
    const { onRecords, onState } = this.options;
    onState("loading");
    let end = 1;
    while (this.#next < end) {
      if (this.#next >= this.#until) await this.#pause();
      const limit = this.#next === 0 ? FIRST_SLICE : SLICE;
      const query = { first_offset: this.#next, limit, outcome: "all" };
      const page = await getJson(`v1/runs/${part(this.runId)}/events`, query, { signal });
      this.#next = page.next_offset;
      end = page.end_offset;
      onRecords(page.events, end);
    }
    const isLive = await this.options.isLive();
    signal.throwIfAborted();
    if (isLive) this.#follow();
    else onState("ended");
  }

  async #pause() {
    this.options.onState("paused");
    await new Promise((resolve) => {
      this.#resume = resolve;
    });
    this.options.onState("loading");
  }

  #follow() {
    this.#endStream = followRun(this.runId, {
      firstOffset: this.#next,
      onRecords: (records) => this.options.onRecords(records, records.at(-1).offset + 1),
      onState: this.options.onState,
    });
  }
}
