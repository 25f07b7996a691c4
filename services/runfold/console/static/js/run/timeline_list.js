/**
 * The timeline of a run: a list of events of which only the visible ones are in the page. Beside them,
 * each tool call is a ribbon from its call to its result; parallel calls lie side by side.
 */

import { h, fill } from "../dom.js";
import { duration, elapsed, fullTime, integer } from "../format.js";
import { icon } from "../icons.js";
import { linkTo } from "../router.js";
import { describe } from "./describe.js";
import { timeOf } from "./timeline.js";

const MARGIN_ROWS = 15;
const LANE_WIDTH = 9;
const LANES_MAX = 8;

/** `<rf-timeline>`: give it a `timeline`, and call `update` when the timeline has grown. */
class TimelineList extends HTMLElement {
  #shown = new Map();
  #ribbons = new Map();
  #frame = 0;
  #selected = null;
  #asOf = Infinity;

  connectedCallback() {
    this.body = h("ol", { class: "timeline-body", "aria-label": "Events" });
    this.layer = h("div", { class: "ribbons", "aria-hidden": "true" });
    fill(this, h("div", { class: "timeline-sheet" }, this.layer, this.body));
    this.addEventListener("scroll", () => this.#schedule(), { passive: true });
    this.addEventListener("keydown", (event) => this.#move(event));
    this.observer = new ResizeObserver(() => {
      this.height = null;
      this.#redraw();
    });
    this.observer.observe(this);
  }

  disconnectedCallback() {
    this.observer.disconnect();
  }

  /** @param {import("./timeline.js").Timeline} timeline */
  set timeline(timeline) {
    this.model = timeline;
    this.#redraw();
  }

  get rowHeight() {
    return (this.height ??= Number.parseFloat(getComputedStyle(this).getPropertyValue("--row-height")) || 28);
  }

  /** Whether the reader looks at the newest events. */
  get isAtEnd() {
    return this.scrollTop + this.clientHeight >= this.scrollHeight - 2 * this.rowHeight;
  }

  /** Draws what was added. With `stay`, the newest events stay in view. */
  update({ stay = false } = {}) {
    this.body.style.height = `${this.model.rows.length * this.rowHeight}px`;
    this.style.setProperty("--lanes", Math.min(this.model.lanes, LANES_MAX));
    if (stay) this.scrollTop = this.scrollHeight;
    this.#draw();
  }

  /** Marks the event of an offset as selected, and brings it into view. */
  select(offset, { focus = false } = {}) {
    this.#selected = offset;
    const row = this.model.rowAt(offset);
    if (row) this.#bringIntoView(row.index);
    this.#redraw();
    if (focus && row) this.#shown.get(row)?.querySelector("button")?.focus({ preventScroll: true });
  }

  /** Events after this offset are shown as not yet there. */
  set asOf(offset) {
    this.#asOf = offset ?? Infinity;
    this.#redraw();
  }

  /** Scrolls so that a share of the rows is above, from 0 to 1. */
  scrollToShare(share) {
    this.scrollTop = share * this.model.rows.length * this.rowHeight - this.clientHeight / 2;
  }

  #bringIntoView(index) {
    const top = index * this.rowHeight;
    if (
      top < this.scrollTop + this.rowHeight ||
      top > this.scrollTop + this.clientHeight - 2 * this.rowHeight
    ) {
      this.scrollTop = top - this.clientHeight / 3;
    }
  }

  #redraw() {
    if (!this.model) return;
    for (const element of [...this.#shown.values(), ...this.#ribbons.values()]) element.remove();
    this.#shown.clear();
    this.#ribbons.clear();
    this.update();
  }

  #schedule() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #draw() {
    const { rows } = this.model;
    // Measured before anything is written, so that the browser lays a frame out once.
    const { scrollTop, clientHeight } = this;
    const bottom = scrollTop + clientHeight;
    const first = Math.max(0, Math.floor(scrollTop / this.rowHeight) - MARGIN_ROWS);
    const end = Math.min(rows.length, Math.ceil(bottom / this.rowHeight) + MARGIN_ROWS);
    const shown = new Map();
    for (const row of rows.slice(first, end)) {
      const element = this.#shown.get(row) ?? this.#newRow(row);
      shown.set(row, element);
      if (row.kind === "turn") fill(element, ...turnCells(row));
    }
    for (const [row, element] of this.#shown) if (!shown.has(row)) element.remove();
    this.#shown = shown;
    this.#drawRibbons(first, end);
    const whole = Math.max(1, rows.length * this.rowHeight);
    const view = { begin: scrollTop / whole, end: Math.min(1, bottom / whole) };
    this.dispatchEvent(new CustomEvent("view", { detail: view }));
  }

  #newRow(row) {
    const element = h("li", {
      class: row.kind === "event" ? this.#classOf(row) : row.kind,
      "aria-setsize": this.model.rows.length,
    });
    if (row.kind === "event") fill(element, this.#eventButton(row));
    else if (row.kind === "copied") fill(element, ...copiedCells(row.origin));
    element.style.top = `${row.index * this.rowHeight}px`;
    this.body.append(element);
    return element;
  }

  #classOf(row) {
    const later = row.offset > this.#asOf ? " later" : "";
    return `event tone-${describe(row.record).tone}${later}${row.amendedBy === undefined ? "" : " amended"}`;
  }

  #eventButton(row) {
    const line = describe(row.record);
    const tags = [...line.tags];
    if (row.amendedBy !== undefined) tags.push("amended");
    if (row.isOrphan) tags.push("no call");
    for (const id of row.calls) tags.push(...this.#ribbonTags(id, row));
    const since = Math.max(0, timeOf(row.record) - this.model.firstTime);
    return h(
      "button",
      {
        type: "button",
        "aria-current": row.offset === this.#selected ? "true" : null,
        "data-offset": row.offset,
        onclick: () => this.dispatchEvent(new CustomEvent("pick", { detail: row.offset })),
      },
      h("span", { class: "offset" }, row.offset),
      h("span", { class: "elapsed", title: fullTime(timeOf(row.record)) }, `+${elapsed(since)}`),
      h("span", { class: "actor" }, icon(line.icon), line.actor),
      h("span", { class: "text" }, line.text),
      tags.map((tag) => h("span", { class: `tag tag-${tag.replace(/\W.*/, "")}` }, tag)),
    );
  }

  #ribbonTags(id, row) {
    const ribbon = this.model.ribbonOf(id, row);
    if (ribbon?.state === "missing" && ribbon.begin === row.index) return ["no result"];
    return ribbon?.end === row.index ? [duration(ribbon.milliseconds)] : [];
  }

  #drawRibbons(first, end) {
    const shown = new Map();
    for (const ribbon of this.model.ribbons) {
      if (ribbon.begin >= end) break;
      const last = ribbon.end ?? (ribbon.state === "open" ? this.model.rows.length - 1 : ribbon.begin);
      if (last < first || ribbon.lane >= LANES_MAX) continue;
      const element = this.#ribbons.get(ribbon) ?? this.layer.appendChild(h("div"));
      element.className = `ribbon ribbon-${ribbon.state}`;
      const top = (ribbon.begin + 0.3) * this.rowHeight;
      element.style.transform = `translate(${ribbon.lane * LANE_WIDTH}px, ${top}px)`;
      element.style.height = `${(last - ribbon.begin + 0.4) * this.rowHeight}px`;
      shown.set(ribbon, element);
    }
    for (const [ribbon, element] of this.#ribbons) if (!shown.has(ribbon)) element.remove();
    this.#ribbons = shown;
  }

  #move(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    const button = event.target.closest("button[data-offset]");
    if (!(event.key in steps) || button === null) return;
    event.preventDefault();
    const step = steps[event.key];
    let index = this.model.rowAt(Number(button.dataset.offset)).index + step;
    index = Math.max(0, Math.min(this.model.rows.length - 1, index));
    const direction = Math.sign(step) * (Number.isFinite(step) ? 1 : -1);
    while (this.model.rows[index] && this.model.rows[index].kind !== "event") index += direction || 1;
    const row = this.model.rows[index];
    if (!row) return;
    this.#bringIntoView(index);
    this.#draw();
    this.#shown.get(row)?.querySelector("button").focus({ preventScroll: true });
  }
}

function turnCells(row) {
  return [
    h("span", { class: "turn-name" }, `Turn ${row.turn}`),
    h(
      "span",
      { class: "dim" },
      `${integer(row.events)} ${row.events === 1 ? "event" : "events"}, ${duration(row.lastTime - row.time)}`,
    ),
  ];
}

function copiedCells({ run_id: runId, offset }) {
  const source = h("a", { href: linkTo(["runs", runId], { offset }) }, `${runId} at ${integer(offset)}`);
  return [h("span", {}, "copied up to here from ", source)];
}

customElements.define("rf-timeline", TimelineList);
