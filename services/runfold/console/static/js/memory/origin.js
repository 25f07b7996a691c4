/** Where a revision came from: the run and the event that changed the memory, as links. */

import { h, fill } from "../dom.js";
import { getJson, part } from "../http.js";
import { linkTo } from "../router.js";
import { poll } from "../streams.js";

const EVENTS_MAX = 1000;
const RETRY_MILLISECONDS = 1000;

/** Statuses that do not change: the run was deleted, or the key may not read it. */
const FINAL = new Set([403, 404]);

const GENERATIONS = ["memories_generated", "generation_requested"];
const CHANGES = ["memory_created", "memory_updated", "memory_deleted", "memory_rolled_back"];

/**
 * A change of a run has the id of the run's event, which a search in the run's events finds.
 * @param {{revision_id: string, run_id: string}} revision
 * @param {AbortSignal} signal
 * @returns {HTMLElement} says the run at once, and the event as soon as it is known
 */
export function originOf({ revision_id: revisionId, run_id: runId }, signal) {
  const element = h("p", { class: "origin" }, "From run ", runLink(runId));
  const path = `v1/runs/${part(runId)}/events`;
  const query = { type: [...GENERATIONS, ...CHANGES], limit: EVENTS_MAX };
  const end = poll(async (polling) => {
    try {
      const found = await findIn(path, query, revisionId, polling);
      fill(element, "From run ", runLink(runId), ", ", ...placesOf(runId, found));
    } catch (error) {
      if (!FINAL.has(error.status)) throw error;
      element.append(`, which is not readable: ${error.message}`);
    }
    end();
  }, RETRY_MILLISECONDS);
  signal.addEventListener("abort", end);
  return element;
}

async function findIn(path, query, id, signal) {
  const requests = new Map();
  let first = 0;
  for (;;) {
    const page = await getJson(path, { ...query, first_offset: first }, { signal });
    for (const record of page.events) {
      const { event } = record;
      if (event.type === "generation_requested") requests.set(event.event_id, event.data);
      if (event.event_id === id) return { record, request: requests.get(event.data.trigger) };
    }
    if (page.next_offset >= page.end_offset) throw new Error("The event has not come yet.");
    first = page.next_offset;
  }
}

function placesOf(runId, { record, request }) {
  const places = [eventLink(runId, record.offset)];
  if (request && request.end_offset > request.first_offset) {
    const [begin, end] = [request.first_offset, request.end_offset - 1];
    places.push(", generated from ", eventLink(runId, begin));
    if (end > begin) places.push(" to ", eventLink(runId, end));
  }
  const sessionId = request?.options?.session?.session_id;
  if (sessionId) {
    const href = linkTo(["sessions", sessionId]);
    places.push(", generated from the session ", h("a", { href }, sessionId));
  }
  return places;
}

function runLink(runId) {
  return h("a", { href: linkTo(["runs", runId]) }, runId);
}

function eventLink(runId, offset) {
  return h("a", { href: linkTo(["runs", runId], { offset }) }, `event ${offset}`);
}
