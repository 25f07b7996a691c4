/** Live data: the stream of one run, and polling. Both rest while the page is hidden. */

import { ApiError, address, part } from "./http.js";

/**
 * Follows a run. After an interruption it goes on after the last offset. `EventSource` would need the
 * names of all types of events beforehand, so the stream is read here.
 * @param {string} runId
 * @param {{firstOffset: number, onRecords: (records: object[]) => void,
 *   onState: (state: "live" | "waiting" | "quarantined") => void}} options
 *   Records arrive in portions, at most one in each frame of the screen.
 * @returns {() => void} ends the stream
 */
export function followRun(runId, { firstOffset, onRecords, onState }) {
  let next = firstOffset;
  let frame = 0;
  let waiting = [];
  const deliver = () => {
    frame = 0;
    const records = waiting;
    waiting = [];
    onRecords(records);
  };
  const receive = ({ name, data }) => {
    if (name === "quarantined") throw new ApiError(409, { detail: "quarantined" });
    if (data.offset < next) return;
    next = data.offset + 1;
    waiting.push(data);
    frame ||= requestAnimationFrame(deliver);
  };
  const end = poll(async (signal) => {
    const url = address(`v1/runs/${part(runId)}/follow`, { first_offset: next, outcome: "all" });
    try {
      for await (const event of serverSentEvents(url, signal, () => onState("live"))) receive(event);
    } catch (error) {
      if (!signal.aborted) onState(error.status === 409 ? "quarantined" : "waiting");
      throw error;
    }
  }, 1000);
  return () => {
    end();
    if (frame) cancelAnimationFrame(frame);
  };
}

async function* serverSentEvents(url, signal, onOpen) {
  const answer = await fetch(url, { signal, headers: { Accept: "text/event-stream" } });
  if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => ({})));
  onOpen();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = parsed(block);
      if (event !== null) yield event;
    }
  }
}

function parsed(block) {
  const fields = { event: "message", data: [] };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    const name = line.slice(0, colon);
    if (name === "data") fields.data.push(line.slice(colon + 2));
    else if (name === "event") fields.event = line.slice(colon + 2);
  }
  return fields.data.length ? { name: fields.event, data: JSON.parse(fields.data.join("\n")) } : null;
}

/**
 * Calls `work` now and again `milliseconds` after each end, while the page is visible. When the page
 * is hidden, the work is aborted. An error makes the pause longer, up to 30 s.
 * @param {(signal: AbortSignal) => Promise<void>} work
 * @param {number} milliseconds
 * @returns {() => void} ends it
 */
export function poll(work, milliseconds) {
  let pause = milliseconds;
  let timer = 0;
  let working = null;
  let hasEnded = false;
  const run = async () => {
    clearTimeout(timer);
    if (hasEnded || document.hidden || working !== null) return;
    working = new AbortController();
    try {
      await work(working.signal);
      pause = milliseconds;
    } catch (error) {
      if (error.name !== "AbortError") pause = Math.max(milliseconds, Math.min(pause * 2, 30_000));
    }
    working = null;
    if (!hasEnded) timer = setTimeout(run, pause);
  };
  const look = () => (document.hidden ? working?.abort() : run());
  document.addEventListener("visibilitychange", look);
  run();
  return () => {
    hasEnded = true;
    clearTimeout(timer);
    working?.abort();
    document.removeEventListener("visibilitychange", look);
  };
}
