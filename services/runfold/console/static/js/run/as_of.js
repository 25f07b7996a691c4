/** What a run was as of an offset: where the API has its ledger, its state and its record. */

import { address, getJson, part } from "../http.js";

/** The formats of a ledger, with their names for readers. */
export const FORMATS = [
  ["canonical", "Runfold's own"],
  ["anthropic", "Anthropic"],
  ["openai-responses", "OpenAI Responses"],
  ["openai-chat", "OpenAI Chat"],
  ["gemini", "Gemini"],
  ["bedrock", "Bedrock"],
];

/** @returns {string} the address of a run's ledger; `offset` null means now */
export function ledgerPath(runId, { offset = null, format = "canonical" } = {}) {
  const isCanonical = format === "canonical";
  return address(`v1/runs/${part(runId)}/ledger`, {
    as_of_offset: offset,
    format: isCanonical ? null : format,
    lossy: isCanonical ? null : "drop",
    validate: isCanonical ? "strict" : format,
  });
}

/** The address of the state that a run has set. */
export function statePath(runId, { offset = null } = {}) {
  return address(`v1/runs/${part(runId)}/state`, { as_of_offset: offset });
}

/** The address of a run's record. */
export function recordPath(runId, { offset = null } = {}) {
  return address(`v1/runs/${part(runId)}`, { as_of_offset: offset });
}

/** The JSON at one of these addresses. */
export function read(path, signal) {
  return getJson(path, {}, { signal });
}
