/** The whole run as a narrow strip beside the timeline. A click or a drag scrolls the timeline. */

import { h, fill } from "../dom.js";
import { describe } from "./describe.js";

const COLOURS = {
  user: "--busy",
  assistant: "--accent",
  system: "--ink-faint",
  thinking: "--line-strong",
  tool: "--tool",
  error: "--bad",
  odd: "--odd",
  run: "--ink-soft",
  other: "--line-strong",
};

/** Drawn over others, so that one fault in 10,000 events is seen. */
const LOUD = new Set(["error", "odd"]);

/** `<rf-minimap>`: readers without a pointer have the timeline itself. Sends `jump` with a share. */
class Minimap extends HTMLElement {
  #tones = [];
  #frame = 0;

  connectedCallback() {
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.window = h("div", { class: "minimap-window" });
    fill(this, this.canvas, this.window);
    this.addEventListener("pointerdown", (event) => {
      this.setPointerCapture(event.pointerId);
      this.#jump(event);
    });
    this.addEventListener("pointermove", (event) => event.buttons && this.#jump(event));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this);
  }

  disconnectedCallback() {
    this.observer.disconnect();
  }

  /** @param {import("./timeline.js").Timeline} timeline */
  set timeline(timeline) {
    this.model = timeline;
    this.#tones = [];
    this.draw();
  }

  /** Shows which part of the run is in view. */
  set view(view) {
    this.shown = view;
    this.#placeWindow();
  }

  /** Draws the run again, at most once in each frame. */
  draw() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      if (this.model && this.isConnected) this.#draw();
    });
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this;
    const scale = devicePixelRatio;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const { rows } = this.model;
    for (let index = this.#tones.length; index < rows.length; index += 1) {
      this.#tones.push(rows[index].kind === "event" ? describe(rows[index].record).tone : null);
    }
    const colours = this.#colours();
    const step = Math.min(4, height / Math.max(1, rows.length));
    for (const isLoud of [false, true]) {
      this.#tones.forEach((tone, index) => {
        if (tone === null || LOUD.has(tone) !== isLoud) return;
        context.fillStyle = colours[tone];
        const [left, size] = tone === "tool" ? [0.35, 0.5] : [0.15, isLoud ? 0.7 : 0.4];
        context.fillRect(left * width, index * step, size * width, Math.max(isLoud ? 2 : 0.6, step * 0.7));
      });
    }
    this.share = (step * rows.length) / height;
    this.#placeWindow();
  }

  /** The colours that the theme has now; a canvas does not know variables of CSS. */
  #colours() {
    const probe = this.window;
    const entries = Object.entries(COLOURS).map(([tone, name]) => {
      probe.style.color = `var(${name})`;
      return [tone, getComputedStyle(probe).color];
    });
    probe.style.color = "";
    return Object.fromEntries(entries);
  }

  #placeWindow() {
    const { begin, end } = this.shown ?? { begin: 0, end: 1 };
    this.window.style.top = `${begin * (this.share ?? 1) * 100}%`;
    this.window.style.height = `${Math.max(1, (end - begin) * (this.share ?? 1) * 100)}%`;
  }

  #jump(event) {
    const box = this.getBoundingClientRect();
    const share = (event.clientY - box.top) / (box.height * (this.share || 1));
    this.dispatchEvent(new CustomEvent("jump", { detail: Math.max(0, Math.min(1, share)) }));
  }
}

customElements.define("rf-minimap", Minimap);
