/**
 * Addresses within the page: `#/runs?status=failed`, `#/runs/r-1?offset=3`. The server never sees
 * them, and they work below any path.
 */

/**
 * A place in the console.
 * @typedef {{parts: string[], query: URLSearchParams}} Place
 */

/** @returns {Place} the place that the address bar names */
export function currentPlace() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return {
    parts: path.split("/").filter(Boolean).map(decoded),
    query: new URLSearchParams(query),
  };
}

/**
 * The link to a place.
 * @param {string[]} parts such as `["runs", runId]`
 * @param {Record<string, any>} [query] lists repeat the parameter; empty values are left out
 */
export function linkTo(parts, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "" && each !== false) parameters.append(name, each);
    }
  }
  const text = parameters.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Goes to a place as a link does. */
export function goTo(parts, query) {
  location.hash = linkTo(parts, query);
}

/** Changes the query of the address, without a new entry in the history and without a new view. */
export function keepInAddress(parts, query) {
  history.replaceState(null, "", linkTo(parts, query));
}

/** Calls `listener` when the place changes. */
export function whenPlaceChanges(listener) {
  addEventListener("hashchange", listener);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
