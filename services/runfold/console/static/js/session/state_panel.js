/** The state of a session, and for each key which events set it. */

import { h } from "../dom.js";
import { getJson, part } from "../http.js";
import { timeFact } from "../parts/facts.js";
import { jsonBlock } from "../parts/json.js";
import { Loaded } from "../parts/loaded.js";
import { linkTo } from "../router.js";

const CHANGES_MAX = 1000;
const SHORT = 80;

const SHARED = {
  "app:": "shared by all users of the app",
  "user:": "shared by all sessions of the user",
};

/** The panel of a session's state. */
export class StatePanel {
  #loaded = new Map();
  #texts = new Map();

  /** @param {string} runId the run of the session */
  constructor(runId) {
    this.runId = runId;
    this.element = h("div", { class: "state" });
    this.empty = h("p", { class: "dim" }, "This session has no state.");
    this.element.append(this.empty);
  }

  /** Shows the state. Keys whose values are as before stay as they are. */
  show(state) {
    const keys = Object.keys(state).sort(ownFirst);
    this.empty.hidden = keys.length > 0;
    keys.forEach((key, index) => {
      const text = JSON.stringify(state[key]);
      if (this.#texts.get(key)?.text === text) return;
      const section = this.#section(key, state[key]);
      const before = this.#texts.get(key)?.section;
      if (before) before.replaceWith(section);
      else this.element.insertBefore(section, this.element.querySelectorAll(".key")[index] ?? null);
      this.#texts.set(key, { text, section });
    });
  }

  /** Ends the requests. */
  close() {
    for (const loaded of this.#loaded.values()) loaded.close();
  }

  #section(key, value) {
    const shared = sharedBy(key);
    const loaded = new Loaded();
    const isOpen = this.#texts.get(key)?.section.querySelector("details").open;
    this.#loaded.get(key)?.close();
    this.#loaded.set(key, loaded);
    const history = h("details", { open: isOpen }, h("summary", {}, "History"), loaded.element);
    history.addEventListener(
      "toggle",
      () => history.open && loaded.load((signal) => this.#history(key, signal)),
    );
    return h(
      "div",
      { class: "key" },
      h("h2", {}, h("code", {}, key), shared && h("span", { class: "tag tag-shared" }, shared)),
      jsonBlock(value, { label: key }),
      history,
    );
  }

  async #history(key, signal) {
    const path = `v1/runs/${part(this.runId)}/state/${part(key)}`;
    const { changes } = await getJson(path, { limit: CHANGES_MAX }, { signal });
    const others = sharedBy(key) && h("p", { class: "dim" }, "Changes by other sessions are not in it.");
    if (changes.length === 0) return h("p", { class: "dim" }, "No event of this session has set it.");
    return [
      others,
      h(
        "ol",
        { class: "changes" },
        changes.toReversed().map((change) => this.#change(change)),
      ),
    ];
  }

  #change({ offset, log_time: logTime, value }) {
    const text = JSON.stringify(value);
    return h(
      "li",
      {},
      timeFact(new Date(logTime).toISOString()),
      h("a", { href: linkTo(["runs", this.runId], { offset }) }, `event ${offset}`),
      text.length > SHORT ? jsonBlock(value, { label: `As of event ${offset}` }) : h("code", {}, text),
    );
  }
}

/** The words for whom a key is shared by; undefined for a key of the session's own. */
function sharedBy(key) {
  return Object.entries(SHARED).find(([prefix]) => key.startsWith(prefix))?.[1];
}

function ownFirst(one, other) {
  const order = (key) => `${sharedBy(key) ? 1 : 0}${key}`;
  return order(one) < order(other) ? -1 : 1;
}
