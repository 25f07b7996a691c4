/** The head of a run's page: what the run is, in two lines. */

import { h } from "../dom.js";
import { compact, duration, integer, money } from "../format.js";
import { icon } from "../icons.js";
import { address, part } from "../http.js";
import { asCurl, asPython, copyButton } from "../parts/copy.js";
import { fact, timeFact } from "../parts/facts.js";
import { shownStatus, statusBadge } from "../parts/status.js";
import { labelTags } from "../parts/tags.js";
import { linkTo } from "../router.js";
import { durationOf, recordsOf } from "../run_list.js";

/**
 * @param {Record<string, any>} record as `GET /v1/runs/{id}` returns it
 * @param {{authentication: boolean}} login
 */
export function runHeader(record, login) {
  const { usage } = record;
  const path = address(`v1/runs/${part(record.run_id)}/events`, { outcome: "all", limit: 1000 });
  const labels = labelTags("runs", record.labels);
  return [
    h(
      "div",
      { class: "run-title" },
      h("a", { class: "quiet", href: linkTo(["runs"]), "aria-label": "All runs" }, icon("back")),
      h("h1", {}, record.run_id),
      statusBadge(shownStatus(record)),
      h("span", { class: "space" }),
      copyButton("curl", () => asCurl(path, login)),
      copyButton("Python", () => asPython(path, login)),
      copyButton("JSON", () => JSON.stringify(record, null, 2)),
    ),
    record.error && h("p", { class: "problem run-error" }, record.error),
    h(
      "p",
      { class: "run-facts" },
      fact(
        "Agent",
        record.agent_id && h("a", { href: linkTo(["runs"], { agent_id: record.agent_id }) }, record.agent_id),
      ),
      fact("Session", record.session_id && sessionLink(record)),
      fact(
        "User",
        record.user_id && h("a", { href: linkTo(["runs"], { user_id: record.user_id }) }, record.user_id),
      ),
      fact("Forked from", record.forked_from && forkLink(record.forked_from)),
      fact("Started", timeFact(record.started_at)),
      fact("Duration", duration(durationOf(record))),
      fact("Records", integer(recordsOf(record))),
      record.archive && archiveFact(record),
      fact(
        "Tokens",
        usage?.input_tokens || usage?.output_tokens
          ? `${compact(usage.input_tokens)} in, ${compact(usage.output_tokens)} out`
          : null,
      ),
      fact(
        "Cost",
        typeof usage?.cost?.amount === "number" ? money(usage.cost.amount, usage.cost.currency) : null,
      ),
      labels,
    ),
  ];
}

/** Up to where the records are archived, and whether the run has gone on since. */
function archiveFact({ archive: { status, end, base }, next_offset: next }) {
  const text = `up to offset ${integer(end)}`;
  const name = status === "archived" ? "Archived" : "Sealed";
  return fact(name, next > base ? `${text}, goes on at ${integer(base)}` : text);
}

function forkLink({ run_id: runId, offset }) {
  return h("a", { href: linkTo(["runs", runId], { offset }) }, `${runId} at ${integer(offset)}`);
}

/** The own run of a session leads to it; the session of another run need not exist. */
function sessionLink({ session_id: sessionId, is_session: isSession }) {
  const href = isSession ? linkTo(["sessions", sessionId]) : linkTo(["runs"], { session_id: sessionId });
  return h("a", { href }, sessionId);
}
