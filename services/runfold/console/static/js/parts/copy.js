/** Copies: text to the clipboard, and requests as programs that send them again. */

import { h, fill } from "../dom.js";
import { icon } from "../icons.js";

const SHOWN_MILLISECONDS = 1500;

/**
 * @param {string} title
 * @param {() => string | Promise<string>} text is asked for when the reader clicks
 * @returns {HTMLElement}
 */
export function copyButton(title, text) {
  const button = h("button", { type: "button", class: "quiet copy" }, icon("copy"), title);
  button.addEventListener("click", async () => {
    const isCopied = await write(text);
    fill(button, icon(isCopied ? "completed" : "warning"), isCopied ? "Copied" : "Not permitted");
    setTimeout(() => fill(button, icon("copy"), title), SHOWN_MILLISECONDS);
  });
  return button;
}

async function write(text) {
  try {
    await navigator.clipboard.writeText(await text());
    return true;
  } catch {
    return false;
  }
}

/** The whole address of a path of the API. */
export function wholeAddress(path) {
  return new URL(path, document.baseURI.replace(/#.*/, "")).href;
}

/**
 * A request as a command line.
 * @param {string} path such as `v1/runs/r-1/ledger?as_of_offset=3`
 * @param {{authentication: boolean}} login
 */
export function asCurl(path, login) {
  const key = login.authentication ? ' \\\n  -H "Authorization: Bearer $RUNFOLD_API_KEY"' : "";
  return `curl ${shellQuoted(wholeAddress(path))}${key}\n`;
}

/** A request as a Python program, as `asCurl`. */
export function asPython(path, login) {
  const key = login.authentication
    ? '\nheaders = {"Authorization": f"Bearer {os.environ[\'RUNFOLD_API_KEY\']}"}'
    : "\nheaders = {}";
  return `import os\n\nimport httpx\n${key}
answer = httpx.get(${pythonQuoted(wholeAddress(path))}, headers=headers, timeout=60)
answer.raise_for_status()
print(answer.json())
`;
}

/** Within single quotes a shell reads nothing but the closing quote. */
export function shellQuoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** JSON's strings are strings of Python too. */
export function pythonQuoted(text) {
  return JSON.stringify(text);
}
