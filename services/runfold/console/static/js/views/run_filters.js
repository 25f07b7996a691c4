/** The filters of the list of runs. Their names are those of the parameters of `GET /v1/runs`. */

import { h } from "../dom.js";
import { icon } from "../icons.js";
import { filterForm, textField, valuesOf } from "../parts/filters.js";
import { STATUSES } from "../parts/status.js";

const TITLES = { open: "The logs of sessions that go on" };

/** Texts that filter, with what stands in the empty field. */
const TEXTS = [
  { name: "text", title: "Search", placeholder: "Search ids and run errors", isWide: true },
  { name: "agent_id", title: "Agent" },
  { name: "session_id", title: "Session" },
  { name: "user_id", title: "User" },
  { name: "label", title: "Label", placeholder: "Label as key:value", isRepeated: true },
];

/** Times, each as an age that the API reads: `1h` is an hour ago. */
const AGES = [
  { name: "since", title: "Started in the last" },
  { name: "failed_since", title: "Failed in the last" },
  { name: "idle", title: "Idle for" },
];

const CHOICES = [
  ["", "–"],
  ["15m", "15 min"],
  ["1h", "1 h"],
  ["1d", "1 day"],
  ["1w", "1 week"],
];

/**
 * The filters in an address. Unknown parameters are left out, because the API would refuse them.
 * @param {URLSearchParams} query
 * @returns {Record<string, string | string[]>}
 */
export function filtersOf(query) {
  const filters = valuesOf(query, [...TEXTS, ...AGES]);
  const statuses = query.getAll("status").filter((status) => STATUSES.includes(status));
  if (statuses.length) filters.status = statuses;
  return filters;
}

/**
 * @param {Record<string, string | string[]>} filters
 * @param {(filters: Record<string, string | string[]>) => void} onChange
 * @returns {HTMLElement}
 */
export function filterBar(filters, onChange) {
  return filterForm(filters, onChange, ({ current, set, type }) => [
    textField(TEXTS[0], current[TEXTS[0].name], type),
    statusChips(current.status ?? [], (statuses) => set("status", statuses)),
    TEXTS.slice(1).map((each) => textField(each, current[each.name], type)),
    AGES.map((each) => ageField(each, current[each.name], set)),
  ]);
}

function statusChips(statuses, onChoice) {
  const chosen = new Set(statuses);
  const chips = STATUSES.map((status) => {
    const pressed = String(chosen.has(status));
    const chip = h("button", {
      type: "button",
      class: `chip status-${status}`,
      "aria-pressed": pressed,
      title: TITLES[status],
    });
    chip.append(icon(status), status);
    chip.addEventListener("click", () => {
      if (!chosen.delete(status)) chosen.add(status);
      chip.setAttribute("aria-pressed", String(chosen.has(status)));
      onChoice([...chosen]);
    });
    return chip;
  });
  return h("div", { class: "chips", role: "group", "aria-label": "Status" }, chips);
}

function ageField({ name, title }, value, onChange) {
  const choices = CHOICES.some(([age]) => age === (value ?? "")) ? CHOICES : [...CHOICES, [value, value]];
  const select = h(
    "select",
    { id: `filter-${name}` },
    choices.map(([age, text]) => h("option", { value: age, selected: age === (value ?? "") }, text)),
  );
  select.addEventListener("change", () => onChange(name, select.value));
  return h("span", { class: "field" }, h("label", { for: select.id }, title), select);
}
