/** What the statistics of an agent say, as texts, links and charts. */

import { h } from "../dom.js";
import { compact, duration, integer, NOTHING } from "../format.js";
import { bars, chart } from "../parts/charts.js";
import { linkTo } from "../router.js";

const PERCENT = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const BUCKETS_PER_DOUBLING = 2;
const LONGEST = 50;

/** 12.5 %; nothing for null */
export function percent(share) {
  return share === null || share === undefined ? NOTHING : PERCENT.format(share);
}

/** A duration that the API gives in seconds. */
export function seconds(value) {
  return duration(typeof value === "number" ? value * 1000 : null);
}

/** The tokens of an agent, in and out. */
export function tokens({ input_tokens: input, output_tokens: output }) {
  return input || output ? `${compact(input)} in, ${compact(output)} out` : NOTHING;
}

/**
 * A link to runs of an agent.
 * @param {object} agent
 * @param {string} since the age of the oldest
 * @param {any} text
 * @param {Record<string, any>} [filters] further ones
 */
export function runsLink(agent, since, text, filters = {}) {
  return h("a", { href: linkTo(["runs"], { agent_id: agent.agent_id, since, ...filters }) }, text);
}

/** The number of failed runs as a link, with their share. */
export function failedRuns(agent, since) {
  if (agent.failed === 0) return agent.ended === 0 ? NOTHING : "0";
  const text = `${integer(agent.failed)} (${percent(agent.failure_rate)})`;
  return runsLink(agent, since, text, { status: "failed" });
}

/** The runs of each day as small bars. */
export function runsSparkline(agent) {
  return bars(agent.runs_by_day.map(dayBar), runsText(agent));
}

/** The runs of each day as a chart with its axis. */
export function runsChart(agent) {
  const days = agent.runs_by_day;
  return chart(days.map(dayBar), {
    label: runsText(agent),
    max: `${integer(Math.max(...days.map((day) => day.runs)))} runs`,
    first: dayText(days[0]),
    last: dayText(days.at(-1)),
  });
}

/** The day of an entry of `runs_by_day`. */
export function dayText({ day }) {
  return DAY.format(new Date(day));
}

/**
 * The buckets from the shortest call to the longest one of all tools, as numbers in a row. Each
 * bucket is longer by the root of 2 than the bucket before.
 */
export function durationRange(tools) {
  const places = tools.flatMap((tool) => tool.histogram).map(placeOf);
  return { first: Math.min(...places), last: Math.max(...places) };
}

/** A range in words, for the title of a column. */
export function rangeText({ first, last }) {
  if (first > last) return "none known";
  return `${seconds(boundOf(first - 1))} to ${last === LONGEST ? "longer" : seconds(boundOf(last))}`;
}

/** The durations of a tool's calls as small bars, within the range of all tools. */
export function durationBars(tool, { first, last }) {
  if (tool.histogram.length === 0) return NOTHING;
  const values = Array.from({ length: last - first + 1 }, () => ({ title: "", value: 0 }));
  for (const bucket of tool.histogram) {
    values[placeOf(bucket) - first] = { title: bucketText(bucket), value: bucket.count };
  }
  return bars(values, `Durations of ${toolName(tool)}: ${tool.histogram.map(bucketText).join("; ")}`);
}

/** The name of a tool in the statistics. */
export function toolName(tool) {
  return tool.tool_name ?? "further tools";
}

function placeOf({ le_seconds: bound }) {
  return bound === null ? LONGEST : Math.round(Math.log2(bound * 1000) * BUCKETS_PER_DOUBLING);
}

function boundOf(place) {
  return place < 0 ? 0 : 2 ** (place / BUCKETS_PER_DOUBLING) / 1000;
}

function bucketText({ le_seconds: bound, count }) {
  const calls = `${integer(count)} ${count === 1 ? "call" : "calls"}`;
  return bound === null ? `${calls} longer` : `${calls} up to ${seconds(bound)}`;
}

function dayBar(day) {
  const failed = day.failed > 0 ? `, ${integer(day.failed)} failed` : "";
  const title = `${dayText(day)}: ${integer(day.runs)} ${day.runs === 1 ? "run" : "runs"}${failed}`;
  return { title, value: day.runs, bad: day.failed };
}

function runsText({ runs, failed, runs_by_day: days }) {
  const most = days.reduce((a, b) => (b.runs > a.runs ? b : a));
  return (
    `${integer(runs)} runs in ${integer(days.length)} days, ${integer(failed)} failed; ` +
    `the most on ${dayText(most)}: ${integer(most.runs)}`
  );
}
