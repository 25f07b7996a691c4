/** Images and files of events are named, never loaded. */

import { h } from "../dom.js";
import { bytes } from "../format.js";

/**
 * @param {Record<string, any>[] | undefined} parts of a message, or the attachments of a result
 * @returns {HTMLElement | null}
 */
export function media(parts) {
  const others = (parts ?? []).filter((part) => part.type !== "text");
  if (others.length === 0) return null;
  return h(
    "ul",
    { class: "media" },
    others.map((part) => {
      const source = part.url ?? (part.data ? `${bytes(part.data.length * 0.75)}, in the event` : "");
      return h(
        "li",
        {},
        h("span", { class: "tag" }, part.type),
        ` ${part.media_type ?? ""} ${part.name ?? ""} ${source}`,
      );
    }),
  );
}
