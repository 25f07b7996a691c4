/** The view of one memory: what it says now, and every revision with what changed in it. */

import { h, fill } from "../dom.js";
import { getJson, part } from "../http.js";
import { icon } from "../icons.js";
import { Revisions } from "../memory/revisions.js";
import { asCurl, asPython, copyButton } from "../parts/copy.js";
import { fact, timeFact } from "../parts/facts.js";
import { scopeTag } from "../parts/tags.js";
import { linkTo } from "../router.js";
import { poll } from "../streams.js";

const POLL_MILLISECONDS = 5000;

class MemoryView extends HTMLElement {
  #end = null;

  disconnectedCallback() {
    this.#close();
  }

  /** Shows the memory that the address names. */
  show(place, login) {
    const [, bank, memoryId] = place.parts;
    this.#close();
    Object.assign(this, { bank, memoryId, login, memory: undefined });
    this.path = `v1/banks/${part(bank)}/memories/${part(memoryId ?? "")}`;
    this.header = h("div", { class: "run-header" });
    this.revisions = new Revisions(this.path, {
      mayChange: login.scopes.includes("memories"),
      onChange: () => this.#read(),
    });
    fill(this, this.header, this.revisions.element);
    this.#end = poll((signal) => this.#read(signal), POLL_MILLISECONDS);
  }

  #close() {
    this.#end?.();
    this.revisions?.close();
  }

  async #read(signal) {
    try {
      const memory = await readMemory(this.path, signal);
      await this.revisions.show(memory, signal);
      this.memory = memory;
      fill(this.header, this.#head());
    } catch (error) {
      if (error.name !== "AbortError") this.#fail(error);
      throw error;
    }
  }

  #fail(error) {
    if (this.memory !== undefined && error.status !== 404) return;
    const all = h("a", { href: linkTo(["memories"]) }, "Show all memories");
    fill(this, h("div", { class: "empty" }, h("p", { role: "alert" }, error.message), all));
  }

  #head() {
    const { memory, login, path } = this;
    const list = linkTo(["memories"], { bank: this.bank });
    return [
      h(
        "div",
        { class: "run-title" },
        h("a", { class: "quiet", href: list, "aria-label": "All memories of the bank" }, icon("back")),
        h("h1", {}, memory?.display_name || this.memoryId),
        memory === null && h("span", { class: "tag tag-error" }, "deleted"),
        h("span", { class: "space" }),
        copyButton("curl", () => asCurl(`${path}/revisions`, login)),
        copyButton("Python", () => asPython(`${path}/revisions`, login)),
      ),
      memory && h("p", { class: "memory-fact" }, memory.fact),
      memory?.description && h("p", { class: "dim" }, memory.description),
      h(
        "p",
        { class: "run-facts" },
        fact("Bank", h("a", { href: list }, this.bank)),
        memory && [
          fact("Scope", scopeTag(memory.bank_id, memory.scope)),
          fact("Topics", memory.topics.map(({ managed, custom }) => custom ?? managed).join(", ")),
          Object.entries(memory.metadata).map(([name, value]) =>
            fact(name, typeof value === "object" ? timeFact(value.timestamp) : String(value)),
          ),
          fact("Created", timeFact(memory.created_at)),
          fact("Updated", timeFact(memory.updated_at)),
          fact("Expires", timeFact(memory.expires_at) ?? "never"),
        ],
      ),
    ];
  }
}

/** The memory as it is now; null if it was deleted. Then its revisions say what there was. */
async function readMemory(path, signal) {
  try {
    return await getJson(path, {}, { signal });
  } catch (error) {
    if (error.status !== 404) throw error;
    return null;
  }
}

customElements.define("rf-memory", MemoryView);
