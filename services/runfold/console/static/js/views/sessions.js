/** The view of all sessions, the newest first, with filters that are kept in the address. */

import { h, fill } from "../dom.js";
import { NOTHING } from "../format.js";
import { timeFact } from "../parts/facts.js";
import { filterForm, textField, valuesOf } from "../parts/filters.js";
import { commandBlock, Listing } from "../parts/listing.js";
import { statusBadge } from "../parts/status.js";
import { labelTags } from "../parts/tags.js";
import { keepInAddress, linkTo } from "../router.js";
import { sessionStatus } from "../session/session_status.js";

/** @type {import("../parts/live_list.js").Source} */
const SESSIONS = {
  path: "v1/sessions",
  member: "sessions",
  idOf: (session) => session.session_id,
  timeOf: (session) => session.created_at,
  isSame: (before, after) => before.next_offset === after.next_offset && isSameAbout(before, after),
  page: 50,
  milliseconds: 5000,
};

const FILTERS = [
  { name: "app", title: "App" },
  { name: "user", title: "User" },
  { name: "label", title: "Label", placeholder: "Label key:value", isRepeated: true },
];

class SessionsView extends HTMLElement {
  connectedCallback() {
    this.listing = new Listing(this, {
      title: "Sessions",
      table: {
        label: "Sessions, the newest first",
        columns: COLUMNS,
        idOf: SESSIONS.idOf,
        linkOf: (session) => linkTo(["sessions", session.session_id]),
      },
      noun: (rows) => (rows.length === 1 ? "session" : "sessions"),
      emptyContent: () => this.#emptyContent(),
    });
  }

  disconnectedCallback() {
    this.listing.close();
  }

  /** Shows the sessions that match the filters of the address. */
  show(place) {
    this.values = valuesOf(place.query, FILTERS);
    const form = filterForm(
      this.values,
      (values) => this.#change(values),
      ({ current, type }) => FILTERS.map((each) => textField(each, current[each.name], type)),
    );
    fill(this.listing.filters, form);
    this.#follow();
  }

  #change(values) {
    this.values = values;
    keepInAddress(["sessions"], values);
    this.#follow();
  }

  #follow() {
    this.listing.follow(SESSIONS, { ...this.values, with_state: false });
  }

  #emptyContent() {
    if (Object.keys(this.values).length > 0) {
      const all = h("a", { href: linkTo(["sessions"]) }, "Show all sessions");
      return [h("p", {}, "No session matches these filters."), all];
    }
    const command = `curl -X POST ${location.origin}${location.pathname}v1/sessions \\
  -H 'Content-Type: application/json' \\
  -d '{"app": "shop", "user": "ann", "session_id": "s-1"}'`;
    return [h("p", {}, "No sessions yet. Create one, and it appears here:"), commandBlock(command)];
  }
}

const COLUMNS = [
  { name: "session", title: "Session", cell: (session) => session.session_id },
  { name: "status", title: "Status", cell: (session) => statusBadge(sessionStatus(session)) },
  { name: "app", title: "App", cell: (session) => session.app },
  { name: "user", title: "User", cell: (session) => session.user || NOTHING },
  { name: "name", title: "Name", cell: (session) => session.display_name ?? "" },
  { name: "created", title: "Created", cell: (session) => timeFact(session.created_at) },
  { name: "updated", title: "Updated", cell: (session) => timeFact(session.updated_at) },
  { name: "expires", title: "Expires", cell: (session) => timeFact(session.expires_at) ?? "never" },
  { name: "labels", title: "Labels", cell: (session) => labelTags("sessions", session.labels) },
];

function isSameAbout(before, after) {
  return (
    before.run_id === after.run_id &&
    before.updated_at === after.updated_at &&
    before.expires_at === after.expires_at
  );
}

customElements.define("rf-sessions", SessionsView);
