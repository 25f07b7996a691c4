/** The dialog of one dead letter: its content, and a field to publish its event again. */

import { h } from "../dom.js";
import { fullTime } from "../format.js";
import { change, getJson, part } from "../http.js";
import { ask } from "../parts/dialog.js";
import { factList } from "../parts/facts.js";
import { textBlock } from "../parts/json.js";

/**
 * Reads and shows a dead letter. Throws `ApiError` if it cannot be read.
 * @param {string} id
 * @param {(letter: object) => void} onRequeued is called after its event was published again
 */
export async function showLetter(id, onRequeued) {
  const path = `v1/dead-letters/${part(id)}`;
  const letter = await getJson(path);
  const original = letter.value ?? "";
  const field = h(
    "textarea",
    { id: "mended-event", rows: "6", spellcheck: "false", class: "mono" },
    original,
  );
  const act = async () => {
    const text = field.value.trim();
    const body = text === "" || text === original.trim() ? {} : { event: eventOf(text) };
    onRequeued(await change("POST", `${path}/requeue`, body));
  };
  ask(
    { title: "Dead letter", action: "Publish again", act },
    h(
      "div",
      { class: "letter" },
      factList({
        Topic: letter.topic,
        Offset: String(letter.offset),
        Reason: letter.reason,
        Since: fullTime(letter.buried_at),
        Key: letter.key,
        Headers: letter.headers.map((header) => header.join(": ")).join(", "),
        "Published again": requeuedText(letter.requeued),
      }),
      letter.is_cut &&
        h("p", { class: "odd-note" }, "The end of the record is left out here. The log has it."),
      h("h3", {}, letter.value === null ? "Content, as base64" : "Content"),
      textBlock(letter.value ?? letter.value_base64, { label: "Content" }),
      h("label", { for: field.id }, "The event to publish, mended or as it is"),
      field,
      h(
        "p",
        { class: "hint" },
        "It becomes a new event at the end of its run. The dead letter stays listed.",
      ),
    ),
  );
}

function requeuedText(requeued) {
  return requeued && `${fullTime(requeued.at)} by ${requeued.by}, at offset ${requeued.offset}`;
}

function eventOf(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The event is no JSON: ${error.message}`, { cause: error });
  }
}
