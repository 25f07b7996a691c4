/** Runs as a list: where the API has them, and how long a run lasts. */

import { LIVE } from "./parts/status.js";

/** @type {import("./parts/live_list.js").Source} */
export const RUNS = {
  path: "v1/runs",
  member: "runs",
  idOf: (run) => run.run_id,
  timeOf: (run) => run.started_at,
  isSame: (before, after) => before.next_offset === after.next_offset && before.status === after.status,
  page: 200,
  milliseconds: 2000,
};

/** The number of records of a run. Its offsets may have gaps. */
export function recordsOf({ counts, exceptions }) {
  return [...Object.values(counts), ...Object.values(exceptions)].reduce((sum, count) => sum + count, 0);
}

/** The milliseconds from a run's beginning to its end, or until now. */
export function durationOf(run) {
  if (typeof run.duration_seconds === "number") return run.duration_seconds * 1000;
  const end = LIVE.has(run.status) ? Date.now() : new Date(run.ended_at ?? run.updated_at).getTime();
  return run.started_at ? Math.max(0, end - new Date(run.started_at).getTime()) : null;
}
