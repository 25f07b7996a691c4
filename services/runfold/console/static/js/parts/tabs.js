/** Tabs, by the pattern that screen readers know: arrow keys move, one panel is shown. */

import { h, fill } from "../dom.js";

let count = 0;

/**
 * @typedef {{name: string, title: string, panel: HTMLElement}} Tab
 *
 * @param {string} label says what the tabs are about
 * @param {Tab[]} tabs
 * @param {(name: string) => void} onChange
 * @returns {{element: HTMLElement, choose: (name: string) => void}}
 */
export function tabs(label, tabs, onChange) {
  count += 1;
  const group = count;
  const idOf = (name, kind) => `tab-${group}-${name}-${kind}`;
  const buttons = tabs.map(({ name, title }) =>
    h(
      "button",
      { type: "button", role: "tab", id: idOf(name, "tab"), "aria-controls": idOf(name, "panel") },
      title,
    ),
  );
  const panels = tabs.map(({ name, panel }) =>
    h(
      "div",
      {
        role: "tabpanel",
        id: idOf(name, "panel"),
        "aria-labelledby": idOf(name, "tab"),
        class: "panel",
        tabindex: "0",
      },
      panel,
    ),
  );
  const choose = (name) => {
    tabs.forEach((tab, index) => {
      const isChosen = tab.name === name;
      buttons[index].setAttribute("aria-selected", String(isChosen));
      buttons[index].tabIndex = isChosen ? 0 : -1;
      panels[index].hidden = !isChosen;
    });
    onChange(name);
  };
  const list = h("div", { role: "tablist", "aria-label": label, class: "tabs" }, buttons);
  buttons.forEach((button, index) => button.addEventListener("click", () => choose(tabs[index].name)));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (buttons.indexOf(document.activeElement) + step + tabs.length) % tabs.length;
    buttons[next].focus();
    choose(tabs[next].name);
  });
  const element = fill(h("div", { class: "tabbed" }), list, panels);
  return { element, choose };
}
