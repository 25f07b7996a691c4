/** The view of all agents: what their runs of the last days did, with links to these runs, and tools. */

import { h, fill } from "../dom.js";
import { failedRuns, runsLink, runsSparkline, seconds, tokens } from "../agent/statistics.js";
import { toolsTable } from "../agent/tools_table.js";
import { timeWindowChooser, timeWindowOf } from "../agent/time_window.js";
import { integer, money } from "../format.js";
import { getJson } from "../http.js";
import { timeFact } from "../parts/facts.js";
import { Listing } from "../parts/listing.js";
import { Section } from "../parts/section.js";
import { keepInAddress, linkTo } from "../router.js";
import { poll } from "../streams.js";

const POLL_MILLISECONDS = 60_000;

class AgentsView extends HTMLElement {
  #end = null;

  connectedCallback() {
    this.listing = new Listing(this, {
      title: "Agents",
      table: {
        label: "Agents, those with the most runs first",
        columns: this.#columns(),
        idOf: (agent) => agent.agent_id,
        linkOf: (agent) => linkTo(["agents", agent.agent_id], { since: this.since }),
      },
      noun: (rows) => (rows.length === 1 ? "agent" : "agents"),
      more: (rows) => `${integer(rows.reduce((sum, agent) => sum + agent.runs, 0))} runs`,
      emptyContent: () => h("p", {}, "No agent has started a run in this time."),
    });
    const table = toolsTable();
    this.tools = new Section("Tools", (tools) => {
      table.show(tools);
      return table.element;
    });
    this.tools.show(null);
    this.append(this.tools.element);
  }

  disconnectedCallback() {
    this.#end?.();
    this.listing.close();
  }

  /** Shows the agents of the time that the address names. */
  show(place) {
    this.since = timeWindowOf(place.query);
    fill(
      this.listing.filters,
      timeWindowChooser(this.since, (since) => this.#change(since)),
    );
    this.#load();
  }

  #change(since) {
    this.since = since;
    keepInAddress(["agents"], { since });
    this.#load();
  }

  #load() {
    this.#end?.();
    const { since } = this;
    const read = async (signal) => {
      const { agents } = await getJson("v1/agents", { since }, { signal });
      this.listing.table.style.setProperty("--rows", agents.length);
      return agents;
    };
    this.#end = poll(async (signal) => {
      await this.listing.showOnce(read);
      await this.#readTools(since, signal);
    }, POLL_MILLISECONDS);
  }

  async #readTools(since, signal) {
    try {
      const { tools } = await getJson("v1/tools", { since }, { signal });
      if (signal.aborted) return;
      this.tools.show(tools.length ? tools.map((tool) => ({ ...tool, since })) : null);
    } catch (error) {
      if (!signal.aborted) this.listing.tell(error);
    }
  }

  #columns() {
    return [
      { name: "agent", title: "Agent", cell: (agent) => agent.agent_id },
      { name: "days", title: "Runs a day", cell: runsSparkline },
      { name: "runs", title: "Runs", cell: (agent) => runsLink(agent, this.since, integer(agent.runs)) },
      { name: "failed", title: "Failed", cell: (agent) => failedRuns(agent, this.since) },
      { name: "calls", title: "Tool calls", cell: toolCalls },
      { name: "tokens", title: "Tokens", cell: (agent) => tokens(agent.usage) },
      { name: "cost", title: "Cost", cell: (agent) => money(agent.cost.amount, agent.cost.currency) },
      { name: "median", title: "Run p50", cell: (agent) => seconds(agent.duration_seconds.p50) },
      { name: "slow", title: "Run p95", cell: (agent) => seconds(agent.duration_seconds.p95) },
      { name: "started", title: "Last run", cell: (agent) => timeFact(agent.last_started_at) },
    ];
  }
}

function toolCalls({ tool_calls: calls, tool_errors: errors }) {
  const count = h("span", { class: "count" }, integer(calls));
  if (errors === 0) return count;
  return [count, h("span", { class: "bad" }, `, ${integer(errors)} ${errors === 1 ? "error" : "errors"}`)];
}

customElements.define("rf-agents", AgentsView);
