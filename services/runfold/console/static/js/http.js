/**
 * Requests to the API. Addresses are relative to the page, because a gateway may serve Runfold under
 * a path of its own: `v1/runs`, never `/v1/runs`.
 */

/** An answer that is no success. `message` is for readers. */
export class ApiError extends Error {
  /**
   * @param {number} status 0 if there was no answer
   * @param {Record<string, any>} problem the problem document
   */
  constructor(status, problem) {
    super(problem.detail || problem.title || `the service answered ${status}`);
    this.name = "ApiError";
    this.status = status;
    this.problem = problem;
  }
}

let token = null;
const onUnauthenticated = new Set();

/** From here on, changes send the token of a login. */
export function setToken(value) {
  token = value;
}

/** Calls `listener` whenever an answer is 401. */
export function whenUnauthenticated(listener) {
  onUnauthenticated.add(listener);
}

/**
 * The address of a route.
 * @param {string} path its parts, each encoded by `part`, such as `v1/runs/${part(id)}`
 * @param {Record<string, any>} [query] lists repeat the parameter; empty values are left out
 */
export function address(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") parameters.append(name, each);
    }
  }
  const text = parameters.toString();
  return text ? `${path}?${text}` : path;
}

/** An id as a part of a path. A slash in it is `%2F`. */
export function part(id) {
  return encodeURIComponent(id).replace(/^\.{1,2}$/, (dots) => "%2E".repeat(dots.length));
}

/** The JSON at an address. `signal` cancels the request. Throws `ApiError`. */
export async function getJson(path, query, { signal } = {}) {
  return (await request("GET", address(path, query), { signal })).json();
}

/**
 * Sends a change, and returns the JSON of the answer, or null for an answer without content.
 * @param {"POST" | "PATCH" | "PUT" | "DELETE"} method
 * @param {any} [body] is sent as JSON
 */
export async function change(method, path, body, { headers = {}, signal } = {}) {
  const sent = { ...headers };
  if (token !== null) sent["Runfold-Token"] = token;
  const options = { headers: sent, signal };
  if (body !== undefined) {
    sent["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await request(method, path, options);
  return answer.status === 204 ? null : answer.json();
}

async function request(method, path, options) {
  let answer;
  try {
    answer = await fetch(path, { method, cache: "no-store", redirect: "error", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: "Runfold does not answer." });
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401) for (const listener of onUnauthenticated) listener();
  throw new ApiError(answer.status, problem);
}
