/** The sections of the operations that only show: projectors, servers, stuck work, runs, editions. */

import { h } from "../dom.js";
import { bytes, compact, duration, firstLine, fullTime, integer, NOTHING } from "../format.js";
import { icon } from "../icons.js";
import { timeFact, factList } from "../parts/facts.js";
import { figureList } from "../parts/figures.js";
import { plainTable } from "../parts/plain_table.js";
import { statusBadge } from "../parts/status.js";
import { linkTo } from "../router.js";

const TONES = {
  ok: ["good", "completed"],
  working: ["good", "completed"],
  running: ["busy", "running"],
  done: ["good", "completed"],
  waiting: ["dim", "pending"],
  parked: ["dim", "paused"],
  degraded: ["odd", "warning"],
  different: ["bad", "warning"],
  quarantined: ["odd", "warning"],
  failing: ["bad", "failed"],
  failed: ["bad", "failed"],
  away: ["bad", "warning"],
};

/** A word about how something works, with an icon and a colour. */
export function state(word) {
  const [tone, sign] = TONES[word] ?? ["dim", "pending"];
  return h("span", { class: `state ${tone}` }, icon(sign), word);
}

/** The head: whether the installation works, and why not. */
export function summary({ status, reasons }) {
  return [
    h("p", { class: "whole-state", role: "status" }, state(status), SENTENCES[status]),
    reasons.length > 0 &&
      h(
        "ul",
        { class: "reasons" },
        reasons.map((reason) => h("li", {}, reason)),
      ),
  ];
}

const SENTENCES = {
  ok: "Everything that is published is folded.",
  degraded: "Runfold works, but not all of it:",
  failing: "A part of what is published is not folded:",
};

/** The numbers that an operator looks at first. */
export function figures({ lag, stuck, quarantine, runs, topics }) {
  const aside = Object.values(quarantine).reduce((sum, count) => sum + count, 0);
  const all = Object.values(runs).reduce((sum, count) => sum + count, 0);
  return figureList([
    {
      name: "Behind the log",
      value: behind(lag),
      more: `${integer(lag.records)} ${lag.records === 1 ? "record" : "records"}`,
      tone: lag.seconds > LATE_SECONDS ? "bad" : null,
    },
    { name: "Stuck", value: integer(stuck.length), tone: stuck.length ? "bad" : null },
    { name: "In quarantine", value: integer(aside), tone: aside ? "odd" : null },
    { name: "Runs", value: integer(all), more: topics.runs ? `${integer(topics.runs)} topics` : null },
  ]);
}

const LATE_SECONDS = 60;

function behind({ seconds }) {
  if (seconds === null) return "unknown";
  return seconds === 0 ? "0 s" : duration(seconds * 1000);
}

/** The projectors with their share of the catalog and their lag. */
export function projectors({ projectors, missing }) {
  const columns = [
    { title: "Projector", cell: (each) => each.worker_id },
    { title: "Status", cell: (each) => state(each.status) },
    { title: "Partitions", cell: (each) => ranges(each.partitions) },
    { title: "Runs", isNumber: true, cell: runsOf },
    { title: "Behind", isNumber: true, cell: (each) => behind(each.lag) },
    { title: "Records", isNumber: true, cell: (each) => integer(each.lag.records) },
    { title: "Edition", cell: (each) => each.edition ?? NOTHING },
    { title: "Since", cell: (each) => timeFact(each.started_at) },
  ];
  return [
    missing.length > 0 &&
      h("p", { class: "odd-note" }, icon("warning"), `No projector has the partitions ${ranges(missing)}.`),
    projectors.length > 0
      ? plainTable("Projectors", columns, projectors)
      : h("p", { class: "dim" }, "No projector has ever reported."),
  ];
}

function runsOf({ active_runs: active, backlog_runs: backlog }) {
  return backlog ? `${integer(active)} + ${integer(backlog)} waiting` : integer(active);
}

/** Ascending numbers as ranges: 0 to 3, 7 */
export function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  const texts = found.map(([first, last]) => (first === last ? `${first}` : `${first} to ${last}`));
  return texts.join(", ") || NOTHING;
}

/** The servers as the API sees them. */
export function servers(rows) {
  const columns = [
    { title: "Server", cell: (each) => each.server },
    { title: "Status", cell: (each) => state(each.status) },
    { title: "Since", cell: (each) => timeFact(each.since) ?? NOTHING },
    {
      title: "Last error",
      cell: (each) =>
        each.last_error ? [timeFact(each.last_error_at), " ", firstLine(each.last_error)] : NOTHING,
    },
  ];
  return plainTable("Servers", columns, rows);
}

/** Work that waits without progress. */
export function stuck(rows) {
  const columns = [
    { title: "What", cell: (each) => each.what },
    { title: "Name", cell: nameOfStuck },
    { title: "Reason", cell: (each) => each.reason },
    { title: "Since", cell: (each) => timeFact(each.since) },
    { title: "Projector", cell: (each) => each.worker_id },
  ];
  return plainTable("Stuck", columns, rows);
}

function nameOfStuck({ run_id: runId, name }) {
  return runId === null ? name || NOTHING : h("a", { href: linkTo(["runs", runId]) }, runId);
}

/** The number of runs of each status, as links to them. */
export function runs(byStatus) {
  const entries = Object.entries(byStatus);
  if (entries.length === 0) return h("p", { class: "dim" }, "No runs yet.");
  return h(
    "ul",
    { class: "counts" },
    entries.map(([status, count]) =>
      h("li", {}, statusBadge(status), h("a", { href: linkTo(["runs"], { status }) }, integer(count))),
    ),
  );
}

/** How much the archive has. */
export function archive({ status, logs, records, ...rest }) {
  const { stored_bytes: size, committed_at: committedAt, last_error: error } = rest;
  return factList({
    Status: [state(status), error && ` ${firstLine(error)}`],
    "Logs that were sealed": integer(logs),
    Records: records === null ? null : integer(records),
    "Size of the files": size === null ? null : bytes(size),
    "Last written": committedAt === null ? (error ? null : "never") : fullTime(committedAt),
  });
}

/** The editions, the last rebuild, and the last verify. */
export function editions({ editions, rebuild, verify }) {
  return factList({
    "Current edition": editions.current ?? "none yet",
    "Being built": editions.building,
    Joined: editions.joined,
    Previous: editions.previous,
    "Last rebuild": rebuild === null ? "never" : rebuildOf(rebuild),
    "Last verify": verify === null ? "never" : verifyOf(verify),
  });
}

function rebuildOf({ edition, status, started_at: startedAt, done_records: done, total_records: total }) {
  const records = `${compact(done)} of ${compact(total)} records`;
  const text = ` of edition ${edition}, started ${fullTime(startedAt)}: ${records}`;
  const bar =
    status === "running" && h("progress", { value: done, max: Math.max(1, total), "aria-label": "Progress" });
  return [state(status), text, bar];
}

function verifyOf({ status, ended_at: endedAt, duration_seconds: seconds, differences }) {
  const found = `${integer(differences)} ${differences === 1 ? "difference" : "differences"}`;
  return [state(status), ` ${found}, ended ${fullTime(endedAt)} after ${duration(seconds * 1000)}`];
}
