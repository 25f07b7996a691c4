/** The difference of two texts (Myers' algorithm, on what differs between both ends). */

const EDITS_MAX = 2_000;

/**
 * @param {string[]} before
 * @param {string[]} after
 * @returns {{kind: "same" | "removed" | "added", line: string}[]}
 */
export function diffLines(before, after) {
  let begin = 0;
  while (begin < before.length && begin < after.length && before[begin] === after[begin]) begin += 1;
  let tail = 0;
  while (
    tail < before.length - begin &&
    tail < after.length - begin &&
    before[before.length - 1 - tail] === after[after.length - 1 - tail]
  ) {
    tail += 1;
  }
  const same = (line) => ({ kind: "same", line });
  return [
    ...before.slice(0, begin).map(same),
    ...middle(before.slice(begin, before.length - tail), after.slice(begin, after.length - tail)),
    ...before.slice(before.length - tail).map(same),
  ];
}

/**
 * The difference of two texts by words. Equal neighbours are one piece.
 * @param {string} before
 * @param {string} after
 * @returns {{kind: "same" | "removed" | "added", text: string}[]}
 */
export function diffWords(before, after) {
  const pieces = [];
  for (const { kind, line } of diffLines(wordsOf(before), wordsOf(after))) {
    if (pieces.at(-1)?.kind === kind) pieces.at(-1).text += line;
    else pieces.push({ kind, text: line });
  }
  return pieces;
}

/** Words, with the spaces and the marks between them as pieces of their own. */
function wordsOf(text) {
  return text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
}

/** Beyond 2,000 edits, everything between is removed and added. */
function middle(before, after) {
  const removed = before.map((line) => ({ kind: "removed", line }));
  const added = after.map((line) => ({ kind: "added", line }));
  if (!before.length || !after.length) return [...removed, ...added];
  const traces = shortestEdits(before, after);
  return traces === null ? [...removed, ...added] : backtracked(before, after, traces);
}

function shortestEdits(before, after) {
  const limit = Math.min(before.length + after.length, EDITS_MAX);
  const reach = new Map([[1, 0]]);
  const traces = [];
  for (let edits = 0; edits <= limit; edits += 1) {
    traces.push(new Map(reach));
    for (let diagonal = -edits; diagonal <= edits; diagonal += 2) {
      let x = stepsDown(reach, diagonal, edits) ? reach.get(diagonal + 1) : reach.get(diagonal - 1) + 1;
      while (x < before.length && x - diagonal < after.length && before[x] === after[x - diagonal]) x += 1;
      reach.set(diagonal, x);
      if (x >= before.length && x - diagonal >= after.length) return traces;
    }
  }
  return null;
}

function stepsDown(reach, diagonal, edits) {
  return diagonal === -edits || (diagonal !== edits && reach.get(diagonal - 1) < reach.get(diagonal + 1));
}

function backtracked(before, after, traces) {
  const lines = [];
  let x = before.length;
  let y = after.length;
  for (let edits = traces.length - 1; edits >= 0; edits -= 1) {
    const reach = traces[edits];
    const isDown = stepsDown(reach, x - y, edits);
    const diagonal = isDown ? x - y + 1 : x - y - 1;
    const beginX = reach.get(diagonal);
    const beginY = beginX - diagonal;
    while (x > beginX && y > beginY && x > 0 && y > 0) {
      x -= 1;
      y -= 1;
      lines.push({ kind: "same", line: before[x] });
    }
    if (edits === 0) break;
    if (isDown) {
      y -= 1;
      lines.push({ kind: "added", line: after[y] });
    } else {
      x -= 1;
      lines.push({ kind: "removed", line: before[x] });
    }
  }
  return lines.reverse();
}
