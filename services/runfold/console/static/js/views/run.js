/** The view of one run: its timeline, live, and beside it what the run is as of any offset. */

import "../run/minimap.js";
import "../run/timeline_list.js";
import "../run/travel.js";
import { h, fill } from "../dom.js";
import { integer } from "../format.js";
import { getJson, part } from "../http.js";
import { icon } from "../icons.js";
import { aside } from "../parts/aside.js";
import { LIVE } from "../parts/status.js";
import { tabs } from "../parts/tabs.js";
import { keepInAddress, linkTo } from "../router.js";
import { recordPanel, statePanel } from "../run/document_panels.js";
import { DifferencePanel } from "../run/difference_panel.js";
import { eventPanel } from "../run/event_panel.js";
import { askToFork, forkButtons } from "../run/fork.js";
import { LedgerPanel } from "../run/ledger_panel.js";
import { RunEvents } from "../run/run_events.js";
import { runHeader } from "../run/run_header.js";
import { Timeline } from "../run/timeline.js";

const HEADER_MILLISECONDS = 1000;

const STATES = {
  loading: "loading…",
  paused: "",
  live: "live",
  waiting: "connecting again…",
  quarantined: "in quarantine: an operator has to look",
  ended: "",
};

class RunView extends HTMLElement {
  #events = null;
  #timer = 0;

  disconnectedCallback() {
    this.#close();
  }

  /** Shows the run that the address names, with the selected event and the offset of the slider. */
  show(place, login) {
    const runId = place.parts[1];
    if (runId !== this.runId) this.#open(runId, login, place.query);
    else this.#restore(place.query);
  }

  #open(runId, login, query) {
    this.#close();
    Object.assign(this, { runId, login, record: null, selected: null, tab: "event" });
    this.model = new Timeline();
    this.#build();
    this.#restore(query);
    this.reading = this.#readRecord();
    this.#events = new RunEvents(runId, {
      onRecords: (records, end) => this.#add(records, end),
      onState: (state) => this.#tell(state),
      onError: (error, isFinal) => this.#fail(error, isFinal),
      isLive: async () => {
        await this.reading;
        return this.record === null || LIVE.has(this.record.status);
      },
    });
  }

  #close() {
    this.#events?.close();
    clearTimeout(this.#timer);
    for (const panel of Object.values(this.panels ?? {})) panel.close?.();
  }

  #build() {
    this.header = h("div", { class: "run-header" });
    this.state = h("span", { class: "live-state", role: "status" });
    this.faults = h("button", {
      type: "button",
      class: "quiet",
      hidden: true,
      onclick: () => this.#nextFault(),
    });
    this.more = h(
      "button",
      { type: "button", hidden: true, onclick: () => this.#events.loadMore() },
      "Load more events",
    );
    this.timeline = h("rf-timeline");
    this.minimap = h("rf-minimap");
    this.travel = h("rf-travel");
    this.eventPlace = h("div", {}, h("p", { class: "dim" }, "Choose an event to see all of it."));
    this.panels = {
      ledger: new LedgerPanel(this.runId, this.login),
      state: statePanel(this.runId, this.login, (offset) => this.#pick(offset)),
      record: recordPanel(this.runId, this.login),
      difference: new DifferencePanel(this.runId),
    };
    this.tabs = tabs(
      "About the run",
      [
        { name: "event", title: "Event", panel: this.eventPlace },
        { name: "ledger", title: "Ledger", panel: this.panels.ledger.element },
        { name: "state", title: "State", panel: this.panels.state.element },
        { name: "record", title: "Record", panel: this.panels.record.element },
        { name: "difference", title: "Difference", panel: this.panels.difference.element },
      ],
      (name) => this.#showTab(name),
    );
    this.aside = aside(this.tabs.element, () => this.timeline.select(this.selected, { focus: true }));
    const tools = h(
      "div",
      { class: "timeline-tools" },
      this.state,
      this.faults,
      this.more,
      this.aside.button,
    );
    const left = h(
      "section",
      { class: "left", "aria-label": "Timeline" },
      tools,
      h("div", { class: "lines" }, this.timeline, this.minimap),
    );
    this.panes = h("div", { class: "panes" }, left, this.aside.element);
    fill(this, this.header, this.travel, this.panes);
    this.timeline.timeline = this.model;
    this.minimap.timeline = this.model;
    this.timeline.addEventListener("pick", (event) => this.#pick(event.detail));
    this.timeline.addEventListener("view", (event) => {
      this.minimap.view = event.detail;
    });
    this.minimap.addEventListener("jump", (event) => this.timeline.scrollToShare(event.detail));
    this.travel.addEventListener("travel", (event) => this.#travel(event.detail));
    this.travel.addEventListener("fork", () => askToFork(this.runId, this.travel.offset));
    this.travel.fork.hidden = !(this.login.scopes.includes("publish") && this.login.scopes.includes("read"));
    this.tabs.choose("event");
  }

  #restore(query) {
    const offset = query.get("offset");
    const at = query.get("at");
    this.wanted = offset === null ? null : Number(offset);
    this.travel.offset = at === null ? null : Number(at);
    this.timeline.asOf = this.travel.offset;
    if (this.wanted !== null && this.model.rowAt(this.wanted)) this.#select(this.wanted);
  }

  #add(records, end) {
    if (!this.panes.isConnected) {
      fill(this, this.header, this.travel, this.panes);
      this.reading = this.#readRecord();
    }
    const stays = this.#wasLive && this.timeline.isAtEnd;
    this.model.add(records);
    if (this.record !== null && !LIVE.has(this.record.status)) this.model.end();
    this.travel.add(records, end);
    this.timeline.update({ stay: stays });
    this.minimap.draw();
    this.#countFaults();
    if (this.wanted !== null && this.selected === null && this.model.rowAt(this.wanted))
      this.#select(this.wanted);
    if (this.#wasLive || this.#isBehind) this.#scheduleRecord();
  }

  get #wasLive() {
    return this.liveState === "live";
  }

  /** Whether the record was read before all events that are shown were folded into it. */
  get #isBehind() {
    return this.record?.next_offset < this.model.nextOffset && this.liveState !== "quarantined";
  }

  #tell(state) {
    this.liveState = state;
    this.state.textContent = STATES[state];
    this.state.className = `live-state is-${state}`;
    this.more.hidden = state !== "paused";
  }

  #fail(error, isFinal) {
    if (this.model.rows.length === 0) {
      const all = h("a", { href: linkTo(["runs"]) }, "Show all runs");
      const again = !isFinal && h("p", { class: "dim" }, "The page tries again by itself.");
      fill(this, h("div", { class: "empty" }, h("p", { role: "alert" }, error.message), again, all));
      return;
    }
    this.state.textContent = error.message;
  }

  async #readRecord() {
    const { runId } = this;
    let record;
    try {
      record = await getJson(`v1/runs/${part(runId)}`);
    } catch {
      return; // The events say why.
    }
    if (runId !== this.runId) return; // Meanwhile another run is open.
    this.record = record;
    fill(this.header, runHeader(this.record, this.login));
    if (!LIVE.has(this.record.status)) {
      this.model.end();
      this.timeline.timeline = this.model;
      this.#countFaults();
    }
    if (this.#isBehind) this.#scheduleRecord();
  }

  #scheduleRecord() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#readRecord(), HEADER_MILLISECONDS);
  }

  #countFaults() {
    const count = this.model.faultyRows().length;
    this.faults.hidden = count === 0;
    fill(
      this.faults,
      icon("warning"),
      `${integer(count)} ${count === 1 ? "problem" : "problems"}: show the next`,
    );
  }

  #nextFault() {
    const rows = this.model.faultyRows();
    const row = rows.find((each) => each.offset > (this.selected ?? -1)) ?? rows[0];
    this.#pick(row.offset);
  }

  #pick(offset) {
    this.#select(offset);
    this.#keep();
    this.tabs.choose("event");
    this.aside.open();
  }

  #select(offset) {
    this.selected = offset;
    this.timeline.select(offset);
    const row = this.model.rowAt(offset);
    if (row === undefined) return;
    const forks = !this.travel.fork.hidden && forkButtons(this.runId, row, this.model);
    const go = h("button", { type: "button", onclick: () => this.#travel(offset) }, "Travel here");
    fill(
      this.eventPlace,
      h("div", { class: "panel-tools" }, go, forks),
      eventPanel(row, this.model, (other) => this.#pick(other)),
    );
  }

  #travel(offset) {
    const row = offset === null ? undefined : this.model.rowAt(offset);
    this.travel.offset = offset;
    this.travel.logTime = row?.record.log_time;
    this.timeline.asOf = offset;
    if (offset !== null) this.timeline.select(offset);
    const last = offset ?? this.model.nextOffset - 1;
    const isEarlier = this.selected !== null && this.selected < last;
    this.panels.difference.earlier = isEarlier ? this.selected : Math.max(0, last - 1);
    this.#keep();
    this.#showTab(this.tab);
  }

  #showTab(name) {
    this.tab = name;
    this.panels[name]?.show(this.travel.offset);
  }

  #keep() {
    keepInAddress(["runs", this.runId], { offset: this.selected, at: this.travel.offset });
  }
}

customElements.define("rf-run", RunView);
