/** The filters of a list: a form whose values are kept in the address. */

import { h } from "../dom.js";

const TYPING_MILLISECONDS = 300;

/**
 * @typedef {Record<string, string | string[]>} Values
 * @typedef {object} Field a text that filters
 * @property {string} name of the parameter
 * @property {string} title
 * @property {string} [placeholder] stands in the empty field; otherwise the title
 * @property {boolean} [isRepeated] values are `key:value`, with commas between them
 * @property {boolean} [isWide]
 * @property {string} [list] the id of a list of suggestions
 */

/**
 * The values of these fields in an address. Other parameters are left out, because the API would
 * refuse them.
 * @param {URLSearchParams} query
 * @param {Field[]} fields
 * @returns {Values}
 */
export function valuesOf(query, fields) {
  const values = {};
  for (const { name, isRepeated } of fields) {
    const texts = query.getAll(name).filter(Boolean);
    if (texts.length) values[name] = isRepeated ? texts : texts[0];
  }
  return values;
}

/**
 * @param {Values} values
 * @param {(values: Values) => void} onChange
 * @param {(form: {current: Values, set: (name: string, value: any) => void,
 *   type: (name: string, value: any) => void}) => any} build makes the fields. `set` changes a value
 *   at once, `type` when the reader rests.
 * @returns {HTMLElement}
 */
export function filterForm(values, onChange, build) {
  const current = { ...values };
  let timer = 0;
  const set = (name, value) => {
    if (value.length) current[name] = value;
    else delete current[name];
    onChange({ ...current });
  };
  const type = (name, value) => {
    clearTimeout(timer);
    timer = setTimeout(() => set(name, value), TYPING_MILLISECONDS);
  };
  return h(
    "form",
    { role: "search", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
    build({ current, set, type }),
  );
}

/**
 * @param {Field} field
 * @param {string | string[] | undefined} value
 * @param {(name: string, value: any) => void} onType
 * @returns {HTMLElement}
 */
export function textField({ name, title, placeholder, isRepeated, isWide, list }, value, onType) {
  const input = h("input", {
    id: `filter-${name}`,
    type: "search",
    class: isWide ? "wide" : null,
    placeholder: placeholder ?? title,
    spellcheck: "false",
    autocomplete: "off",
    list,
    value: isRepeated ? (value ?? []).join(", ") : value,
  });
  input.addEventListener("input", () => {
    const text = input.value.trim();
    onType(name, isRepeated ? text.split(/\s*,\s*/).filter((each) => each.includes(":")) : text);
  });
  return h("span", { class: "field" }, h("label", { class: "unseen", for: input.id }, title), input);
}
