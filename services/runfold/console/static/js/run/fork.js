/** The dialog that forks a run at an offset, and the buttons that open it. */

import { h } from "../dom.js";
import { integer } from "../format.js";
import { change, part } from "../http.js";
import { icon } from "../icons.js";
import { ask } from "../parts/dialog.js";
import { goTo } from "../router.js";
import { itemsOf } from "./frameworks.js";

/**
 * The buttons of an event: a fork that ends with it, and a fork that ends before its call or turn.
 * @param {string} runId
 * @param {import("./timeline.js").Row} row
 * @param {import("./timeline.js").Timeline} timeline
 * @returns {HTMLElement[]}
 */
export function forkButtons(runId, row, timeline) {
  const button = (text, offset) =>
    h("button", { type: "button", onclick: () => askToFork(runId, offset) }, icon("fork"), text);
  const buttons = [button("Fork here", row.offset)];
  const isCall = itemsOf(row.record.event).some((item) => item.type === "tool_call");
  const isFirst = timeline.rows[row.index - 1]?.kind === "turn";
  if (row.offset > 0 && isCall) buttons.push(button("Fork before this call", row.offset - 1));
  else if (row.offset > 0 && isFirst) buttons.push(button("Fork before this turn", row.offset - 1));
  return buttons;
}

/**
 * Asks the reader, forks, and goes to the new run.
 * @param {string} runId
 * @param {number | null} offset the last offset of the fork; null: the whole run
 */
export function askToFork(runId, offset) {
  const id = h("input", {
    id: "fork-id",
    placeholder: "chosen by Runfold",
    spellcheck: "false",
    autocomplete: "off",
  });
  const key = crypto.randomUUID();
  const act = async () => {
    const body = {};
    if (offset !== null) body.at = offset;
    if (id.value.trim()) body.run_id = id.value.trim();
    const headers = { "Idempotency-Key": key };
    const fork = await change("POST", `v1/runs/${part(runId)}/fork`, body, { headers });
    goTo(["runs", fork.run_id]);
  };
  const last = `its events up to and including offset ${integer(offset ?? 0)}`;
  const where = offset === null ? "all of its events" : last;
  ask(
    { title: "Fork this run", action: "Fork", act },
    h("p", {}, `A new run begins with ${where}. This run does not change.`),
    h("label", { for: "fork-id" }, "Id of the new run"),
    id,
  );
}
