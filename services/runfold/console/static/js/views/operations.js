/** The view of operations: how the installation works, what is set aside, and the ways out. */

import { h, fill } from "../dom.js";
import { time } from "../format.js";
import { getJson } from "../http.js";
import { DeadLettersPart } from "../operations/dead_letters.js";
import {
  archive,
  editions,
  figures,
  projectors,
  runs,
  servers,
  stuck,
  summary,
} from "../operations/overview.js";
import { QuarantinePart } from "../operations/quarantine.js";
import { Problem } from "../parts/problem.js";
import { Section } from "../parts/section.js";
import { poll } from "../streams.js";

const POLL_MILLISECONDS = 5000;

class OperationsView extends HTMLElement {
  #end = null;

  connectedCallback() {
    this.asOf = h("span", { class: "dim" });
    this.problem = new Problem();
    this.quarantine = new QuarantinePart();
    this.letters = new DeadLettersPart();
    this.sections = {
      summary: new Section("Status", summary),
      figures: new Section("Now", figures),
      stuck: new Section("Stuck", stuck),
      projectors: new Section("Projectors", projectors),
      servers: new Section("Servers", servers),
      runs: new Section("Runs by status", runs),
      archive: new Section("Archive", archive),
      editions: new Section("Editions, rebuild and verify", editions),
    };
    const { summary: head, figures: numbers, stuck: waiting, ...further } = this.sections;
    fill(
      this,
      h("div", { class: "page-title" }, h("h1", {}, "Operations"), this.asOf),
      this.problem.element,
      [head, numbers, waiting, this.quarantine, this.letters, ...Object.values(further)].map(
        (section) => section.element,
      ),
    );
    for (const { element } of [...Object.values(this.sections), this.quarantine, this.letters]) {
      element.hidden = true;
    }
    this.#end = poll((signal) => this.problem.watch(() => this.#read(signal)), POLL_MILLISECONDS);
  }

  disconnectedCallback() {
    this.#end?.();
  }

  /** The view has no places of its own. */
  show() {}

  async #read(signal) {
    let now;
    try {
      now = await getJson("v1/operations", {}, { signal });
    } catch (error) {
      if (error.name !== "AbortError") await this.#showServers(signal);
      throw error;
    }
    this.#show(now);
    const entries = Object.values(now.quarantine).reduce((sum, count) => sum + count, 0);
    await Promise.all([
      this.quarantine.update(entries, signal),
      this.letters.update(now.dead_letters, signal),
    ]);
  }

  /** Without MongoDB there are no figures. The health of the API says which server is away. */
  async #showServers(signal) {
    try {
      await getJson("health/ready", {}, { signal });
    } catch ({ problem }) {
      if (problem?.servers?.length) this.sections.servers.show(problem.servers);
    }
  }

  #show(now) {
    const { sections } = this;
    this.asOf.textContent = `as of ${time(now.as_of)}`;
    sections.summary.show({ status: now.status, reasons: now.reasons });
    sections.figures.show(now);
    sections.stuck.show(now.stuck.length ? now.stuck : null);
    sections.projectors.show({ projectors: now.projectors, missing: now.partitions_without_projector });
    sections.servers.show(now.servers.length ? now.servers : null);
    sections.runs.show(now.runs);
    sections.archive.show(now.archive);
    sections.editions.show({ editions: now.editions, rebuild: now.rebuild, verify: now.verify });
  }
}

customElements.define("rf-operations", OperationsView);
