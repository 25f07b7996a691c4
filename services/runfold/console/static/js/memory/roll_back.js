/** The dialog that rolls a memory back. */

import { h } from "../dom.js";
import { fullTime } from "../format.js";
import { change } from "../http.js";
import { ask } from "../parts/dialog.js";
import { wordDifference } from "../parts/word_difference.js";

/**
 * Asks the reader, and restores the content of a revision.
 * @param {string} path of the memory
 * @param {Record<string, any>} revision
 * @param {Record<string, any> | null} memory as it is now; null if it was deleted
 * @param {() => Promise<void>} onChange
 */
export function askToRollBack(path, revision, memory, onChange) {
  const { revision_id: revisionId, created_at: createdAt } = revision;
  const act = async () => {
    await change("POST", `${path}/rollback`, { revision_id: revisionId });
    await onChange();
  };
  const when = fullTime(createdAt);
  ask(
    { title: "Roll this memory back", action: "Roll back", act },
    h("p", {}, `The memory gets the content that it had on ${when}. This makes a new revision.`),
    wordDifference(memory?.fact ?? "", revision.fact, "What changes"),
  );
}
