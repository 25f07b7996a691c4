/** Dialogs that ask before something changes. */

import { h, fill } from "../dom.js";

let count = 0;

/**
 * Asks the reader. The dialog stays open, and shows the error, if `act` throws.
 * @param {{title: string, action: string, act: () => Promise<void>}} question `action` is the text of
 *   the button
 * @param {...any} children what the reader decides about
 */
export function ask({ title, action, act }, ...children) {
  count += 1;
  const id = `dialog-${count}`;
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const dialog = h("dialog", { "aria-labelledby": id });
  const confirm = h("button", { type: "submit", class: "primary" }, action);
  const submit = async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    try {
      await act();
      dialog.close();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    confirm.disabled = false;
  };
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  fill(
    dialog,
    h(
      "form",
      { class: "dialog", onsubmit: submit },
      h("h2", { id }, title),
      children,
      problem,
      h("div", { class: "dialog-end" }, cancel, confirm),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
