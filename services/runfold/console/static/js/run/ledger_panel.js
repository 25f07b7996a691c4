/** The ledger as each provider would get it, with the reasons for which the provider would refuse it. */

import { h } from "../dom.js";
import { integer } from "../format.js";
import { icon } from "../icons.js";
import { asCurl, asPython, copyButton } from "../parts/copy.js";
import { jsonBlock } from "../parts/json.js";
import { Loaded } from "../parts/loaded.js";
import { FORMATS, ledgerPath, read } from "./as_of.js";

const MESSAGES_SHOWN = 200;
const TEXT_SHOWN = 4_000;

/** The panel of a run's ledger. */
export class LedgerPanel {
  #loaded = new Loaded();
  #format = "canonical";

  constructor(runId, login) {
    this.runId = runId;
    this.login = login;
    const select = h(
      "select",
      { id: "ledger-format" },
      FORMATS.map(([name, title]) => h("option", { value: name }, title)),
    );
    select.addEventListener("change", () => {
      this.#format = select.value;
      this.show(this.offset);
    });
    this.element = h(
      "div",
      { class: "ledger-panel" },
      h(
        "div",
        { class: "panel-tools" },
        h("label", { for: "ledger-format" }, "As the request of"),
        select,
        copyButton("curl", () => asCurl(this.#path(), login)),
        copyButton("Python", () => asPython(this.#path(), login)),
      ),
      this.#loaded.element,
    );
  }

  /** Shows the ledger up to an offset; null means now. */
  show(offset) {
    this.offset = offset;
    return this.#loaded.load(async (signal) => {
      const ledger = await read(this.#path(), signal);
      return this.#format === "canonical" ? canonical(ledger) : request(ledger);
    });
  }

  close() {
    this.#loaded.close();
  }

  #path() {
    return ledgerPath(this.runId, { offset: this.offset ?? null, format: this.#format });
  }
}

function canonical({ messages, faults }) {
  const first = Math.max(0, messages.length - MESSAGES_SHOWN);
  const byMessage = Map.groupBy(faults ?? [], (fault) => fault.message_index ?? -1);
  return [
    faultList(byMessage.get(-1)),
    h(
      "p",
      { class: "dim" },
      `${integer(messages.length)} messages${first ? `, the last ${MESSAGES_SHOWN} of them here` : ""}`,
    ),
    messages.slice(first).map((message, index) => messageBlock(message, byMessage.get(first + index))),
    h("details", {}, h("summary", {}, "JSON"), jsonBlock(messages, { label: "Ledger" })),
  ];
}

function request({ request: body, dropped, restated, faults }) {
  return [
    faultList(faults),
    faultList(dropped, "Left out, because this provider cannot express it"),
    faultList(restated, "Instructions that stand as the user's words"),
    jsonBlock(body, { label: "Request" }),
  ];
}

function faultList(faults, title = "This provider would refuse the request") {
  if (!faults?.length) return null;
  return h(
    "section",
    { class: "faults" },
    h("p", {}, h("strong", {}, icon("warning"), ` ${title}`)),
    h(
      "ul",
      {},
      faults.map((fault) => h("li", {}, h("code", {}, fault.rule), ` ${fault.text}`)),
    ),
  );
}

function messageBlock(message, faults) {
  return h(
    "section",
    { class: `message role-${message.role}` },
    h("h2", {}, message.role),
    message.parts.map(partBlock),
    faultList(faults, "At this message"),
  );
}

function partBlock(part) {
  switch (part.type) {
    case "text":
      return h("p", { class: "said" }, shortened(part.text));
    case "thinking":
      return h(
        "details",
        {},
        h("summary", {}, "Thinking", part.signature && h("span", { class: "tag" }, "signed")),
        h("p", { class: "said" }, shortened(part.text ?? "")),
      );
    case "tool_use":
      return h("p", { class: "said mono" }, `→ ${part.name}  ${shortened(JSON.stringify(part.input))}`);
    case "tool_result":
      return h(
        "p",
        { class: `said mono${part.is_error ? " bad" : ""}` },
        `← ${shortened(textOf(part.content))}`,
      );
    default:
      return h("p", { class: "said dim" }, `(${part.type} ${part.media_type ?? ""})`);
  }
}

function textOf(content) {
  return typeof content === "string" ? content : JSON.stringify(content);
}

function shortened(text) {
  return text.length > TEXT_SHOWN ? fillIn(text) : text;
}

function fillIn(text) {
  return `${text.slice(0, TEXT_SHOWN)}… (${integer(text.length)} characters)`;
}
