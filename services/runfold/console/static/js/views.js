/**
 * The views of the console, by the first part of their address. A view is a custom element: the
 * shell makes it, calls its `show(place, login)` whenever the place within the view changes, and
 * removes it when the reader goes to another view. So a view begins its requests in `show`, and ends
 * its streams in `disconnectedCallback`.
 */

import "./views/agent.js";
import "./views/agents.js";
import "./views/memories.js";
import "./views/memory.js";
import "./views/operations.js";
import "./views/run.js";
import "./views/runs.js";
import "./views/session.js";
import "./views/sessions.js";

/**
 * @typedef {{path: string, title: string, element: string, scopes: string[], single?: string}} View
 *   A key needs one of the `scopes` for the view; the menu shows views that the reader may use.
 *   `single` is the element that shows one entry of a list, below the list's address.
 */

/** @type {View[]} */
export const VIEWS = [
  { path: "runs", title: "Runs", element: "rf-runs", scopes: ["read"], single: "rf-run" },
  { path: "sessions", title: "Sessions", element: "rf-sessions", scopes: ["read"], single: "rf-session" },
  {
    path: "memories",
    title: "Memories",
    element: "rf-memories",
    scopes: ["read", "memories"],
    single: "rf-memory",
  },
  { path: "agents", title: "Agents", element: "rf-agents", scopes: ["read"], single: "rf-agent" },
  { path: "operations", title: "Operations", element: "rf-operations", scopes: ["administer"] },
];

/** @returns {View} the view of a place; the first view if there is no such place */
export function viewOf(place) {
  const view = VIEWS.find((each) => each.path === place.parts[0]) ?? VIEWS[0];
  return view.single && place.parts.length > 1 ? { ...view, element: view.single } : view;
}

/** Whether the reader's key permits a view. */
export function maySee(view, login) {
  return view.scopes.some((scope) => login.scopes.includes(scope));
}
