/**
 * The rows and ribbons of a timeline, from the records of a run in their order. This module knows no
 * page, so it is tested by itself.
 */

import { itemsOf } from "./frameworks.js";

const COUNTS = new Set(["accepted", "late"]);

/**
 * @typedef {object} Row
 * @property {"turn" | "event" | "copied"} kind "copied" is the line below the events that a fork has copied
 * @property {number} index
 * @property {string} [turn]
 * @property {number} [events] of a turn
 * @property {number} [lastTime] of a turn
 * @property {number} [offset] of an event
 * @property {Record<string, any>} [record]
 * @property {number} [amendedBy] the offset of the amendment that counts
 * @property {string[]} [calls] the ids of ribbons that begin or end here
 * @property {boolean} [isOrphan] a result without a call
 * @property {{run_id: string, offset: number}} [origin] the run that the events above were copied from
 *
 * @typedef {object} Ribbon
 * @property {string} id the tool call's
 * @property {string} name the tool's
 * @property {number} begin index of the row of the call
 * @property {number | null} end index of the row of the result
 * @property {number} lane ribbons of one time have different lanes
 * @property {"open" | "done" | "error" | "missing"} state
 * @property {number | null} milliseconds
 * @property {number} beginTime
 */

/** Grows by `add`, and never shrinks. */
export class Timeline {
  /** @type {Row[]} */
  rows = [];
  /** @type {Ribbon[]} in the order of their beginnings */
  ribbons = [];
  lanes = 0;
  firstTime = null;
  nextOffset = 0;

  #rowOf = new Map();
  #latest = new Map();
  #taken = [];
  #turn = null;
  #origin = null;

  /** Adds records, each once. */
  add(records) {
    for (const record of records) {
      if (record.offset < this.nextOffset) continue;
      this.nextOffset = record.offset + 1;
      this.#addRecord(record);
    }
  }

  /** The row of an offset, if it is loaded. */
  rowAt(offset) {
    return this.#rowOf.get(offset);
  }

  /** The ribbon of the last call with this id that begins at or before a row. */
  ribbonOf(id, row) {
    return this.ribbons.findLast((ribbon) => ribbon.id === id && ribbon.begin <= row.index);
  }

  /** Calls without a result are missing it, since the run has ended. */
  end() {
    for (const ribbon of this.ribbons) if (ribbon.state === "open") ribbon.state = "missing";
  }

  /** The rows that went wrong, for readers who look for the reason of a failure. */
  faultyRows() {
    const missing = new Set(
      this.ribbons.filter((each) => each.state === "missing").map((each) => each.begin),
    );
    return this.rows.filter(
      (row) => row.kind === "event" && (missing.has(row.index) || isFaulty(row.record)),
    );
  }

  #addRecord(record) {
    const { event } = record;
    const time = timeOf(record);
    // A fork is opened later than the events that it begins with.
    if (this.firstTime === null || record.offset === 1)
      this.firstTime = Math.min(this.firstTime ?? time, time);
    // An event without a turn belongs to the turn of the event before it.
    if (event?.turn_id && event.turn_id !== this.#turn?.turn) this.#beginTurn(event.turn_id, record);
    const row = { kind: "event", index: this.rows.length, offset: record.offset, record, calls: [] };
    this.rows.push(row);
    this.#rowOf.set(record.offset, row);
    this.#markCopies(record);
    if (this.#turn !== null) {
      this.#turn.events += 1;
      this.#turn.lastTime = time;
    }
    if (!COUNTS.has(record.outcome)) return;
    if (event.type === "event_amended") this.#amend(event.data.offset, record.offset);
    for (const item of itemsOf(event)) this.#addItem(item, row);
  }

  /** The copies follow the first record, which names their origin. */
  #markCopies({ offset, event }) {
    if (offset === 0) this.#origin = event?.data.forked_from ?? null;
    if (offset === this.#origin?.events)
      this.rows.push({ kind: "copied", index: this.rows.length, origin: this.#origin });
  }

  #beginTurn(turn, record) {
    this.#turn = {
      kind: "turn",
      index: this.rows.length,
      turn,
      events: 0,
      time: timeOf(record),
      lastTime: timeOf(record),
    };
    this.rows.push(this.#turn);
  }

  #amend(offset, by) {
    const row = this.#rowOf.get(offset);
    if (row) row.amendedBy = by;
  }

  #addItem({ type, data }, row) {
    if (type === "tool_call") this.#beginRibbon(data, row);
    else if (type === "tool_result") this.#endRibbon(data, row);
    else if (type === "user_message") this.#freeOpenLanes();
  }

  #beginRibbon({ tool_call_id: id, tool_name: name }, row) {
    let lane = this.#taken.findIndex((taken) => taken === null);
    if (lane < 0) lane = this.#taken.length;
    this.lanes = Math.max(this.lanes, lane + 1);
    const ribbon = {
      id,
      name,
      begin: row.index,
      end: null,
      lane,
      state: "open",
      milliseconds: null,
      beginTime: timeOf(row.record),
    };
    this.#taken[lane] = ribbon;
    this.ribbons.push(ribbon);
    this.#latest.set(id, ribbon);
    row.calls.push(id);
  }

  /** Of several results the last counts, so a ribbon may end again. */
  #endRibbon({ tool_call_id: id, error = null, duration_ms: told }, row) {
    const ribbon = this.#latest.get(id);
    if (ribbon === undefined) {
      row.isOrphan = true;
      return;
    }
    ribbon.end = row.index;
    ribbon.state = error === null ? "done" : "error";
    ribbon.milliseconds = told ?? Math.max(0, timeOf(row.record) - ribbon.beginTime);
    row.calls.push(id);
    if (this.#taken[ribbon.lane] === ribbon) this.#taken[ribbon.lane] = null;
  }

  /** A call that the user did not wait for keeps no lane. */
  #freeOpenLanes() {
    this.#taken = this.#taken.map((ribbon) => (ribbon?.state === "open" ? null : ribbon));
  }
}

/**
 * When an event happened, in milliseconds. The producer's clock is finer than the log's: all events
 * of a batch have one time in the log.
 */
export function timeOf({ event, log_time: logTime }) {
  return event ? new Date(event.timestamp).getTime() : logTime;
}

function isFaulty({ outcome, event }) {
  if (outcome !== "accepted" || event === null) return true;
  if (event.type === "run_failed") return true;
  return itemsOf(event).some(
    ({ type, data }) => type === "tool_result" && data.error !== null && data.error !== undefined,
  );
}
