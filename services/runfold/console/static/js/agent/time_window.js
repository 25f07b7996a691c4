/** The time over which the statistics of agents are counted, as an age that the API reads. */

import { h } from "../dom.js";

const WINDOWS = [
  ["1d", "1 day"],
  ["7d", "7 days"],
  ["30d", "30 days"],
  ["90d", "90 days"],
];

/** @returns {string} the age in an address; a week if there is none that the API reads */
export function timeWindowOf(query) {
  const age = query.get("since") ?? "";
  return /^\d{1,4}[smhdw]$/.test(age) ? age : "7d";
}

/**
 * @param {string} chosen
 * @param {(age: string) => void} onChange
 * @returns {HTMLElement}
 */
export function timeWindowChooser(chosen, onChange) {
  const choices = WINDOWS.some(([age]) => age === chosen) ? WINDOWS : [...WINDOWS, [chosen, chosen]];
  const group = h("div", { class: "chips", role: "group", "aria-label": "Runs that started in the last" });
  for (const [age, text] of choices) {
    const chip = h("button", { type: "button", class: "chip", "aria-pressed": String(age === chosen) }, text);
    chip.addEventListener("click", () => {
      for (const each of group.children) each.setAttribute("aria-pressed", String(each === chip));
      onChange(age);
    });
    group.append(chip);
  }
  return group;
}
