/** The status of a session, in the words of the statuses of runs. */

/** @returns {"open" | "completed"} an active session is open */
export function sessionStatus(session) {
  return session.status === "active" ? "open" : "completed";
}
