/** The tools of all agents as a table. */

import { h } from "../dom.js";
import { integer } from "../format.js";
import { SortedTable } from "../parts/sorted_table.js";
import { linkTo } from "../router.js";
import { seconds, toolName } from "./statistics.js";

const AGENTS_SHOWN = 4;

/** @returns {SortedTable} for rows of `GET /v1/tools`, each with its time as `since` */
export function toolsTable() {
  const columns = [
    { title: "Tool", cell: toolName, value: toolName },
    { title: "Agents", cell: callers },
    { title: "Calls", isNumber: true, cell: (tool) => integer(tool.calls), value: (tool) => tool.calls },
    {
      title: "Errors",
      isNumber: true,
      cell: (tool) => h("span", { class: tool.errors ? "bad" : null }, integer(tool.errors)),
      value: (tool) => tool.errors,
    },
    {
      title: "p50",
      isNumber: true,
      cell: (tool) => seconds(tool.p50_seconds),
      value: (tool) => tool.p50_seconds,
    },
    {
      title: "p95",
      isNumber: true,
      cell: (tool) => seconds(tool.p95_seconds),
      value: (tool) => tool.p95_seconds,
    },
  ];
  return new SortedTable("Tools of all agents", columns, "Calls");
}

function callers({ agents, agent_ids: ids, since }) {
  const shown = ids.slice(0, AGENTS_SHOWN);
  const links = shown.map((id, number) => [
    number ? ", " : "",
    h("a", { href: linkTo(["agents", id], { since }) }, id),
  ]);
  const more = agents - shown.length;
  return [links, more > 0 && h("span", { class: "dim" }, ` and ${integer(more)} more`)];
}
