/** The view of one agent: its runs a day, its models and its tools. */

import {
  dayText,
  durationBars,
  durationRange,
  failedRuns,
  rangeText,
  runsChart,
  runsLink,
  seconds,
  toolName,
} from "../agent/statistics.js";
import { timeWindowChooser, timeWindowOf } from "../agent/time_window.js";
import { h, fill } from "../dom.js";
import { compact, fullTime, integer, money } from "../format.js";
import { address, getJson, part } from "../http.js";
import { icon } from "../icons.js";
import { asCurl, asPython, copyButton } from "../parts/copy.js";
import { figureList } from "../parts/figures.js";
import { plainTable } from "../parts/plain_table.js";
import { Problem } from "../parts/problem.js";
import { Section } from "../parts/section.js";
import { usageByModel } from "../parts/usage.js";
import { keepInAddress, linkTo } from "../router.js";
import { poll } from "../streams.js";

const POLL_MILLISECONDS = 60_000;

class AgentView extends HTMLElement {
  #end = null;

  disconnectedCallback() {
    this.#end?.();
  }

  /** Shows the agent and the time that the address names. */
  show(place, login) {
    this.agentId = place.parts[1];
    this.since = timeWindowOf(place.query);
    this.login = login;
    this.#build();
    this.#load();
  }

  #build() {
    const path = () => address(`v1/agents/${part(this.agentId)}`, { since: this.since });
    this.problem = new Problem();
    this.sections = {
      figures: new Section("In this time", (agent) => figures(agent, this.since)),
      days: new Section("Runs a day", days),
      tools: new Section("Tools", tools),
      models: new Section("Models", ({ by_model: byModel, cost }) => usageByModel(byModel, cost)),
    };
    this.back = h("a", { class: "quiet", "aria-label": "All agents" }, icon("back"));
    fill(
      this,
      h(
        "div",
        { class: "page-title" },
        this.back,
        h("h1", {}, this.agentId),
        timeWindowChooser(this.since, (since) => this.#change(since)),
        h("span", { class: "space" }),
        copyButton("curl", () => asCurl(path(), this.login)),
        copyButton("Python", () => asPython(path(), this.login)),
      ),
      this.problem.element,
      Object.values(this.sections).map((section) => section.element),
    );
    for (const section of Object.values(this.sections)) section.show(null);
  }

  #change(since) {
    this.since = since;
    keepInAddress(["agents", this.agentId], { since });
    this.#load();
  }

  #load() {
    this.#end?.();
    this.back.setAttribute("href", linkTo(["agents"], { since: this.since }));
    this.#end = poll((signal) => this.problem.watch(() => this.#read(signal)), POLL_MILLISECONDS);
  }

  async #read(signal) {
    const { since } = this;
    const {
      until,
      since: from,
      ...agent
    } = await getJson(`v1/agents/${part(this.agentId)}`, { since }, { signal });
    const { figures, days, tools, models } = this.sections;
    figures.show({ ...agent, window: since });
    days.show(agent);
    tools.show(agent.tools.length ? agent.tools : null);
    models.show(agent.by_model.length ? agent : null);
  }
}

function figures(agent, since) {
  const { p50, p95 } = agent.duration_seconds;
  const cost = agent.cost;
  return figureList([
    {
      name: "Runs",
      value: runsLink(agent, since, integer(agent.runs)),
      more: `${integer(agent.open)} not ended`,
    },
    { name: "Failed", value: failedRuns(agent, since), tone: agent.failed ? "bad" : null },
    { name: "Run, p95", value: seconds(p95), more: `half within ${seconds(p50)}` },
    {
      name: "Tool calls",
      value: integer(agent.tool_calls),
      more: `${integer(agent.tool_errors)} ${agent.tool_errors === 1 ? "error" : "errors"}`,
    },
    {
      name: "Tokens in",
      value: compact(agent.usage.input_tokens),
      more: `${compact(agent.usage.output_tokens)} out`,
    },
    {
      name: "Cost",
      value: money(cost.amount, cost.currency),
      more: cost.amount === null ? cost.reason : null,
    },
  ]);
}

function days(agent) {
  if (agent.runs === 0) return h("p", { class: "dim" }, "This agent has started no run in this time.");
  const columns = [
    { title: "Day (UTC)", cell: dayText },
    { title: "Runs", isNumber: true, cell: (day) => integer(day.runs) },
    { title: "Failed", isNumber: true, cell: (day) => integer(day.failed) },
  ];
  return [
    runsChart(agent),
    h("p", { class: "dim" }, `Last run: ${fullTime(agent.last_started_at)}`),
    h(
      "details",
      {},
      h("summary", {}, "As a table"),
      plainTable("Runs a day", columns, agent.runs_by_day.toReversed()),
    ),
  ];
}

function tools(rows) {
  const range = durationRange(rows);
  const columns = [
    { title: "Tool", cell: toolName },
    { title: "Calls", isNumber: true, cell: (tool) => integer(tool.calls) },
    {
      title: "Errors",
      isNumber: true,
      cell: (tool) => h("span", { class: tool.errors ? "bad" : null }, integer(tool.errors)),
    },
    { title: "p50", isNumber: true, cell: (tool) => seconds(tool.p50_seconds) },
    { title: "p95", isNumber: true, cell: (tool) => seconds(tool.p95_seconds) },
    { title: `Durations, ${rangeText(range)}`, cell: (tool) => durationBars(tool, range) },
  ];
  return plainTable("Tools, those with the most calls first", columns, rows);
}

customElements.define("rf-agent", AgentView);
