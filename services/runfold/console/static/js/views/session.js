/** The view of one session: its conversation, live, and beside it the state and what the session is. */

import { h, fill } from "../dom.js";
import { fullTime } from "../format.js";
import { getJson, part } from "../http.js";
import { icon } from "../icons.js";
import { aside } from "../parts/aside.js";
import { asCurl, asPython, copyButton } from "../parts/copy.js";
import { fact, factList, timeFact } from "../parts/facts.js";
import { jsonBlock } from "../parts/json.js";
import { statusBadge } from "../parts/status.js";
import { tabs } from "../parts/tabs.js";
import { labelTags } from "../parts/tags.js";
import { linkTo } from "../router.js";
import { RunEvents } from "../run/run_events.js";
import { Timeline } from "../run/timeline.js";
import { Chat } from "../session/chat.js";
import { sessionStatus } from "../session/session_status.js";
import { StatePanel } from "../session/state_panel.js";
import { poll } from "../streams.js";

const POLL_MILLISECONDS = 2000;

const STATES = {
  loading: "loading…",
  live: "live",
  waiting: "connecting again…",
  quarantined: "in quarantine",
};

class SessionView extends HTMLElement {
  #events = null;
  #end = null;

  disconnectedCallback() {
    this.#close();
  }

  /** Shows the session that the address names. */
  show(place, login) {
    const [, sessionId] = place.parts;
    const offset = place.query.get("offset");
    this.wanted = offset === null ? null : Number(offset);
    if (sessionId === this.sessionId) this.chat?.select(this.wanted);
    else this.#open(sessionId, login);
  }

  #open(sessionId, login) {
    this.#close();
    Object.assign(this, { sessionId, login, session: null });
    fill(this, h("p", { class: "empty", role: "status" }, "loading…"));
    this.#end = poll((signal) => this.#read(signal), POLL_MILLISECONDS);
  }

  #close() {
    this.#end?.();
    this.#events?.close();
    this.state?.close();
    this.chat = null;
  }

  async #read(signal) {
    try {
      const path = `v1/sessions/${part(this.sessionId)}`;
      const session = await getJson(path, {}, { signal });
      const isOther = session.run_id !== this.session?.run_id;
      const isChanged = JSON.stringify(session) !== JSON.stringify(this.session);
      this.session = session;
      if (isOther) this.#build();
      if (isChanged) this.#showSession();
    } catch (error) {
      if (error.name !== "AbortError") this.#fail(error);
      throw error;
    }
  }

  /** A session that was deleted and made anew has another run. */
  #build() {
    const { run_id: runId } = this.session;
    this.#events?.close();
    this.state?.close();
    this.chat = new Chat(runId);
    this.state = new StatePanel(runId);
    this.model = new Timeline();
    this.header = h("div", { class: "run-header" });
    this.live = h("span", { class: "live-state", role: "status" });
    this.more = h(
      "button",
      { type: "button", hidden: true, onclick: () => this.#events.loadMore() },
      "Load more events",
    );
    this.about = h("div");
    const tabbed = tabs(
      "About the session",
      [
        { name: "state", title: "State", panel: this.state.element },
        { name: "about", title: "Session", panel: this.about },
      ],
      () => null,
    );
    tabbed.choose("state");
    const beside = aside(tabbed.element);
    const tools = h("div", { class: "timeline-tools" }, this.live, this.more, beside.button);
    const left = h("section", { class: "left", "aria-label": "Conversation" }, tools, this.chat.element);
    fill(this, this.header, h("div", { class: "panes" }, left, beside.element));
    this.#events = new RunEvents(runId, {
      onRecords: (records) => this.#add(records),
      onState: (state) => this.#tell(state),
      onError: (error) => this.#fail(error),
      isLive: async () => this.session.status === "active",
    });
  }

  #showSession() {
    const { session } = this;
    if (session.status !== "active") this.model.end();
    fill(this.header, sessionHeader(session, this.login));
    this.state.show(session.state);
    fill(this.about, aboutSession(session));
    this.chat.update(this.model);
  }

  #add(records) {
    const isFirst = this.model.rows.length === 0;
    this.model.add(records);
    if (this.session.status !== "active") this.model.end();
    this.chat.update(this.model);
    if (this.wanted !== null && (isFirst || this.model.rowAt(this.wanted))) {
      this.chat.select(this.wanted);
      if (this.model.rowAt(this.wanted)) this.wanted = null;
    }
  }

  #tell(state) {
    this.live.textContent = STATES[state] ?? "";
    this.live.className = `live-state is-${state}`;
    this.more.hidden = state !== "paused";
  }

  #fail(error) {
    if (this.session !== null && error.status !== 404) {
      this.live.textContent = error.message;
      return;
    }
    this.#events?.close();
    this.session = null;
    const all = h("a", { href: linkTo(["sessions"]) }, "Show all sessions");
    fill(this, h("div", { class: "empty" }, h("p", { role: "alert" }, error.message), all));
  }
}

function sessionHeader(session, login) {
  const path = `v1/sessions/${part(session.session_id)}?include=events`;
  return [
    h(
      "div",
      { class: "run-title" },
      h("a", { class: "quiet", href: linkTo(["sessions"]), "aria-label": "All sessions" }, icon("back")),
      h("h1", {}, session.display_name || session.session_id),
      statusBadge(sessionStatus(session)),
      h("span", { class: "space" }),
      copyButton("curl", () => asCurl(path, login)),
      copyButton("Python", () => asPython(path, login)),
      copyButton("JSON", () => JSON.stringify(session, null, 2)),
    ),
    h(
      "p",
      { class: "run-facts" },
      fact("Session", session.display_name && session.session_id),
      fact("App", h("a", { href: linkTo(["sessions"], { app: session.app }) }, session.app)),
      fact(
        "User",
        session.user && h("a", { href: linkTo(["sessions"], { user: session.user }) }, session.user),
      ),
      fact("Run", h("a", { href: linkTo(["runs", session.run_id]) }, session.run_id)),
      fact("Created", timeFact(session.created_at)),
      fact("Updated", timeFact(session.updated_at)),
      fact("Expires", timeFact(session.expires_at) ?? "never"),
      labelTags("sessions", session.labels),
    ),
  ];
}

function aboutSession(session) {
  const { state, ...others } = session;
  return [
    factList({
      Session: session.session_id,
      Name: session.display_name,
      Status: session.status,
      App: session.app,
      User: session.user,
      Run: session.run_id,
      Created: fullTime(session.created_at),
      Updated: fullTime(session.updated_at),
      Expires: session.expires_at ? fullTime(session.expires_at) : "never",
      Labels: Object.entries(session.labels)
        .map((pair) => pair.join(": "))
        .join(", "),
    }),
    h("a", { href: linkTo(["runs"], { session_id: session.session_id }) }, "Runs of this session"),
    h("details", {}, h("summary", {}, "JSON"), jsonBlock(others, { label: "Session" })),
  ];
}

customElements.define("rf-session", SessionView);
