/**
 * The slider over the offsets of a run. At its right end it shows the run as it is now. A run that was
 * archived goes on far behind its last offset: the slider leaves out such gaps.
 */

import { h } from "../dom.js";
import { integer, time } from "../format.js";
import { icon } from "../icons.js";

const SETTLE_MILLISECONDS = 150;
const GAP_MIN = 100;

/** Sends the event `travel` with an offset, or null for now. */
class TimeTravel extends HTMLElement {
  #end = 1;
  #offset = null;
  #next = 0;
  #gaps = [];
  #timer = 0;

  connectedCallback() {
    this.range = h("input", {
      type: "range",
      id: "travel",
      min: 0,
      max: 0,
      value: 0,
      "aria-describedby": "travel-place",
    });
    this.text = h("output", { id: "travel-place", for: "travel" });
    this.now = h("button", { type: "button", class: "quiet", onclick: () => this.#go(null) }, "Now");
    this.fork = h(
      "button",
      { type: "button", onclick: () => this.dispatchEvent(new Event("fork")) },
      icon("fork"),
      "Fork here",
    );
    this.range.addEventListener("input", () => {
      const value = Number(this.range.value);
      this.#go(value >= Number(this.range.max) ? null : this.#offsetAt(value));
    });
    this.replaceChildren(h("label", { for: "travel" }, "As of"), this.range, this.text, this.now, this.fork);
    this.#tell();
  }

  /** Takes further records, and the end of the run, which grows. */
  add(records, end) {
    for (const { offset } of records) {
      if (offset - this.#next > GAP_MIN) this.#gaps.push({ begin: this.#next, size: offset - this.#next });
      this.#next = offset + 1;
    }
    this.#end = end;
    this.range.max = Math.max(0, this.#placeOf(end - 1));
    this.#place();
  }

  /** @returns {number | null} */
  get offset() {
    return this.#offset;
  }

  /** Shows an offset without an event. */
  set offset(offset) {
    this.#offset = offset;
    this.#place();
  }

  /** The log time of the shown offset, for the reader. */
  set logTime(value) {
    this.at = value;
    this.#tell();
  }

  #place() {
    this.range.value = this.#offset === null ? this.range.max : this.#placeOf(this.#offset);
    this.#tell();
  }

  #placeOf(offset) {
    const passed = this.#gaps.filter(({ begin, size }) => offset >= begin + size);
    return passed.reduce((place, { size }) => place - size, offset);
  }

  #offsetAt(place) {
    return this.#gaps.reduce((offset, { begin, size }) => (offset >= begin ? offset + size : offset), place);
  }

  #go(offset) {
    this.offset = offset;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(
      () => this.dispatchEvent(new CustomEvent("travel", { detail: offset })),
      SETTLE_MILLISECONDS,
    );
  }

  #tell() {
    const isNow = this.#offset === null;
    this.now.disabled = isNow;
    const when = !isNow && this.at ? `, ${time(this.at)}` : "";
    this.text.textContent = isNow
      ? `now (${integer(this.#placeOf(this.#end - 1) + 1)} records)`
      : `offset ${integer(this.#offset)}${when}`;
  }
}

customElements.define("rf-travel", TimeTravel);
