/** A run's status as a word with an icon and a colour. */

import { h } from "../dom.js";
import { icon } from "../icons.js";

/** All statuses that the page shows. */
export const STATUSES = ["pending", "running", "open", "paused", "completed", "failed", "canceled"];

/** Statuses of runs that have not ended. */
export const LIVE = new Set(["pending", "running", "paused"]);

/** The log of a session does not run for ever: it is open. */
export function shownStatus(run) {
  return run.is_session && run.status === "running" ? "open" : run.status;
}

/** @returns {HTMLElement} */
export function statusBadge(status) {
  return h("span", { class: `status status-${status}` }, icon(status), status);
}
