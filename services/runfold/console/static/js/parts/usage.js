/** Tokens and cost by model. */

import { h } from "../dom.js";
import { integer, money, NOTHING } from "../format.js";
import { plainTable } from "./plain_table.js";

/**
 * @param {object[]} byModel the rows of `by_model`
 * @param {{amount: number | null, currency: string | null, reason: string | null} | undefined} cost of all
 *   of them
 * @returns {any[]} a table and the sum
 */
export function usageByModel(byModel, cost) {
  const columns = [
    { title: "Model", cell: (row) => row.model ?? (row.is_others ? "further models" : NOTHING) },
    { title: "Calls", isNumber: true, cell: (row) => integer(row.calls) },
    { title: "In", isNumber: true, cell: (row) => integer(row.input_tokens) },
    { title: "Out", isNumber: true, cell: (row) => integer(row.output_tokens) },
    { title: "Cost", isNumber: true, cell: (row) => money(row.cost, cost?.currency) },
  ];
  return [plainTable("Tokens and cost by model", columns, byModel), h("p", { class: "dim" }, together(cost))];
}

function together(cost) {
  return typeof cost?.amount === "number"
    ? `Together ${money(cost.amount, cost.currency)}`
    : `Cost: ${cost?.reason ?? "not known"}`;
}
