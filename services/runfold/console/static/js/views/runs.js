/** The view of all runs: a table that follows the log, with filters that are kept in the address. */

import { h, fill } from "../dom.js";
import { copyButton } from "../parts/copy.js";
import { asCsv } from "../parts/csv.js";
import { compact, duration, firstLine, integer, money, NOTHING } from "../format.js";
import { icon } from "../icons.js";
import { timeFact } from "../parts/facts.js";
import { commandBlock, Listing } from "../parts/listing.js";
import { LIVE, shownStatus, statusBadge } from "../parts/status.js";
import { keepInAddress, linkTo } from "../router.js";
import { durationOf, recordsOf, RUNS } from "../run_list.js";
import { filterBar, filtersOf } from "./run_filters.js";

class RunsView extends HTMLElement {
  connectedCallback() {
    const copy = copyButton("CSV", () => asCsv(CSV_TITLES, this.listing.rows.map(csvRow)));
    this.listing = new Listing(this, {
      title: "Runs",
      table: {
        label: "Runs, the newest first",
        columns: COLUMNS,
        idOf: RUNS.idOf,
        linkOf: (run) => linkTo(["runs", run.run_id]),
      },
      noun: (rows) => (rows.length === 1 ? "run" : "runs"),
      more: (rows) => `${integer(rows.filter((run) => LIVE.has(run.status)).length)} not ended`,
      emptyContent: () => emptyText(this.filters),
      tools: copy,
    });
  }

  disconnectedCallback() {
    this.listing.close();
  }

  /** Shows the runs that match the filters of the address. */
  show(place) {
    this.filters = filtersOf(place.query);
    fill(
      this.listing.filters,
      filterBar(this.filters, (filters) => this.#change(filters)),
    );
    this.listing.follow(RUNS, this.filters);
  }

  #change(filters) {
    this.filters = filters;
    keepInAddress(["runs"], filters);
    this.listing.follow(RUNS, filters);
  }
}

const COLUMNS = [
  { name: "run", title: "Run", cell: (run) => run.run_id },
  { name: "status", title: "Status", cell: (run) => statusBadge(shownStatus(run)) },
  { name: "agent", title: "Agent", cell: (run) => run.agent_id || NOTHING },
  { name: "session", title: "Session", cell: (run) => run.session_id ?? NOTHING },
  { name: "user", title: "User", cell: (run) => run.user_id ?? NOTHING },
  { name: "started", title: "Started", cell: (run) => timeFact(run.started_at) },
  { name: "duration", title: "Duration", cell: (run) => duration(durationOf(run)) },
  { name: "events", title: "Events", cell: (run) => integer(recordsOf(run)) },
  { name: "tokens", title: "Tokens", cell: tokensCell },
  { name: "cost", title: "Cost", cell: costCell },
  { name: "errors", title: "Errors", cell: errorsCell },
];

const SEARCHED =
  "The search finds words of ids, agents, users, labels and the error of a run, " +
  "but no words of messages or of tools' errors.";

const CSV_TITLES = [
  ...["run_id", "status", "agent_id", "session_id", "user_id", "started_at", "ended_at", "duration_seconds"],
  ...["records", "input_tokens", "output_tokens", "cost", "error"],
];

function csvRow(run) {
  return [
    ...[run.run_id, run.status, run.agent_id, run.session_id, run.user_id, run.started_at, run.ended_at],
    ...[run.duration_seconds, recordsOf(run), run.usage?.input_tokens, run.usage?.output_tokens],
    ...[run.cost?.amount, run.error],
  ];
}

function tokensCell({ usage }) {
  const input = usage?.input_tokens ?? 0;
  const output = usage?.output_tokens ?? 0;
  if (!input && !output) return NOTHING;
  const title = `${integer(input)} in, ${integer(output)} out`;
  return h(
    "span",
    { title },
    compact(input),
    h("span", { class: "dim" }, " in "),
    compact(output),
    h("span", { class: "dim" }, " out"),
  );
}

function costCell(run) {
  const cost = run.cost ?? run.usage?.cost;
  return money(cost?.amount ?? (typeof cost === "number" ? cost : null), cost?.currency);
}

function errorsCell(run) {
  const odd = Object.entries(run.exceptions ?? {});
  const texts = [
    run.error && firstLine(run.error),
    odd.length > 0 && odd.map(([outcome, count]) => `${integer(count)} ${outcome}`).join(", "),
  ].filter(Boolean);
  if (texts.length === 0) return "";
  const text = texts.join(" · ");
  return h("span", { class: run.error ? "bad" : "odd", title: text }, icon("warning"), text);
}

function emptyText(filters) {
  if (Object.keys(filters).length > 0) {
    return [
      h("p", {}, "No run matches these filters."),
      filters.text && h("p", { class: "dim" }, SEARCHED),
      h("a", { href: linkTo(["runs"]) }, "Show all runs"),
    ];
  }
  const command = `curl -X POST ${location.origin}${location.pathname}v1/runs \\
  -H 'Content-Type: application/json' \\
  -d '{"run_id": "r-1", "agent_id": "travel-desk"}'`;
  return [h("p", {}, "No runs yet. Open one, and it appears here:"), commandBlock(command)];
}

customElements.define("rf-runs", RunsView);
