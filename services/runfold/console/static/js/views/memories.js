/** The view of memories: the memories of a bank, of a scope, or the nearest in meaning to a text. */

import { h, fill } from "../dom.js";
import { NOTHING } from "../format.js";
import { change, getJson, part } from "../http.js";
import { timeFact } from "../parts/facts.js";
import { filterForm, textField, valuesOf } from "../parts/filters.js";
import { commandBlock, Listing } from "../parts/listing.js";
import { scopePairs, scopeTag } from "../parts/tags.js";
import { keepInAddress, linkTo } from "../router.js";

const BANKS_MAX = 1000;
const NEAREST_MAX = 100;

const BANK = { name: "bank", title: "Bank" };
const SCOPE = {
  name: "scope",
  title: "Scope",
  placeholder: "Scope key:value",
  isRepeated: true,
  isWide: true,
  list: "scopes",
};
const QUERY = { name: "query", title: "Search by meaning", isWide: true };

/** @returns {import("../parts/live_list.js").Source} */
function memoriesOf(bank) {
  return {
    path: `v1/banks/${part(bank)}/memories`,
    member: "memories",
    idOf: (memory) => memory.memory_id,
    timeOf: (memory) => memory.created_at,
    isSame: (before, after) => before.revision_id === after.revision_id,
    page: 200,
    milliseconds: 5000,
  };
}

class MemoriesView extends HTMLElement {
  #scopes = new Map();

  connectedCallback() {
    this.listing = new Listing(this, {
      title: "Memories",
      table: {
        label: "Memories",
        columns: COLUMNS,
        idOf: (memory) => memory.memory_id,
        linkOf: (memory) => linkTo(["memories", memory.bank_id, memory.memory_id]),
      },
      noun: (rows) => this.#noun(rows),
      emptyContent: () => this.#emptyContent(),
    });
    this.suggestions = h("datalist", { id: "scopes" });
  }

  disconnectedCallback() {
    this.listing.close();
  }

  /** Shows the memories that the address names; without a bank, those of the newest bank. */
  async show(place) {
    this.values = valuesOf(place.query, [BANK, SCOPE, QUERY]);
    try {
      const { banks } = await getJson("v1/banks", { limit: BANKS_MAX });
      if (!this.isConnected) return;
      this.banks = banks;
    } catch (error) {
      this.listing.tell(error);
      return;
    }
    this.values.bank ??= this.banks[0]?.bank_id;
    const form = filterForm(
      this.values,
      (values) => this.#change(values),
      ({ current, set, type }) => [
        bankField(this.banks, current.bank, set),
        textField(SCOPE, current.scope, type),
        textField(QUERY, current.query, type),
        this.suggestions,
      ],
    );
    fill(this.listing.filters, form);
    this.#load();
  }

  #change(values) {
    if (values.bank !== this.values.bank) this.#scopes.clear();
    this.values = values;
    keepInAddress(["memories"], values);
    this.#load();
  }

  #load() {
    const { bank, scope, query } = this.values;
    this.needsScope = Boolean(query && !scope);
    this.classList.toggle("is-search", Boolean(query));
    if (!bank || this.needsScope) this.listing.showOnce(async () => []);
    else if (query) this.listing.showOnce((signal) => nearest(bank, scope, query, signal));
    else this.listing.follow(memoriesOf(bank), { scope });
  }

  /** Remembers the scopes of the rows, to suggest them. */
  #noun(rows) {
    for (const { scope } of rows) {
      const text = scopePairs(scope).join(", ");
      if (this.#scopes.has(text)) continue;
      this.#scopes.set(text, scope);
      this.suggestions.append(h("option", { value: text }));
    }
    return rows.length === 1 ? "memory" : "memories";
  }

  #emptyContent() {
    if (this.needsScope) {
      const tags = [...this.#scopes.values()].map((scope) =>
        scopeTag(this.values.bank, scope, this.values.query),
      );
      return [
        h("p", {}, "A search by meaning is within one scope. Choose one."),
        h("p", { class: "tags" }, tags),
      ];
    }
    if (this.values.scope || this.values.query) {
      const all = h("a", { href: linkTo(["memories"], { bank: this.values.bank }) }, "Show all of the bank");
      return [h("p", {}, "No memory has exactly this scope."), all];
    }
    if (this.values.bank && this.banks.length > 1) return h("p", {}, "This bank has no memories.");
    const post = `curl -H 'Content-Type: application/json' ${location.origin}${location.pathname}v1/banks`;
    const commands = [
      `${post} -d '{"bank_id": "travel"}'`,
      `${post}/travel/memories \\\n  -d '{"fact": "Prefers window seats", "scope": {"user": "ann"}}'`,
    ];
    return [
      h("p", {}, "No memories yet. Create one, and it appears here:"),
      commandBlock(commands.join("\n")),
    ];
  }
}

async function nearest(bank, scope, query, signal) {
  const pairs = scope.map((pair) => [pair.slice(0, pair.indexOf(":")), pair.slice(pair.indexOf(":") + 1)]);
  const body = { scope: Object.fromEntries(pairs), query, limit: NEAREST_MAX };
  const path = `v1/banks/${part(bank)}/memories/retrieve`;
  const { retrieved } = await change("POST", path, body, { signal });
  return retrieved.map(({ memory, distance }) => ({ ...memory, distance }));
}

function bankField(banks, bank, set) {
  const titles = new Map(banks.map(({ bank_id: id, config }) => [id, config.display_name]));
  if (bank && !titles.has(bank)) titles.set(bank, null);
  const select = h(
    "select",
    { id: "filter-bank" },
    [...titles].map(([id, name]) =>
      h("option", { value: id, selected: id === bank }, name ? `${id} (${name})` : id),
    ),
  );
  select.addEventListener("change", () => set("bank", select.value));
  return h("span", { class: "field" }, h("label", { for: select.id }, "Bank"), select);
}

const COLUMNS = [
  { name: "fact", title: "Memory", cell: (memory) => h("span", { title: memory.fact }, memory.fact) },
  { name: "distance", title: "Distance", cell: (memory) => memory.distance?.toFixed(2) ?? "" },
  { name: "scope", title: "Scope", cell: (memory) => scopeTag(memory.bank_id, memory.scope) },
  { name: "topics", title: "Topics", cell: (memory) => topicsText(memory.topics) },
  { name: "created", title: "Created", cell: (memory) => timeFact(memory.created_at) },
  { name: "updated", title: "Updated", cell: (memory) => timeFact(memory.updated_at) },
  { name: "expires", title: "Expires", cell: (memory) => timeFact(memory.expires_at) ?? "never" },
];

function topicsText(topics) {
  return topics.map(({ managed, custom }) => custom ?? managed).join(", ") || NOTHING;
}

customElements.define("rf-memories", MemoriesView);
