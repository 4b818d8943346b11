// How far back the charts go.

import { problemOf } from "./connection.js";
import { byId, element, setAttribute, setText } from "./dom.js";
import { History, RANGES } from "./history.js";

export class Ranges {
  range = RANGES[0];
  #histories = new Map(RANGES.map((range) => [range, new History(range)]));
  #buttons;
  #keys;
  #onChange;
  #timer = 0;

  constructor(keys, onChange) {
    this.#keys = keys;
    this.#onChange = onChange;
    this.#buttons = RANGES.map((range) => {
      const button = element("button", "", range.label);
      button.type = "button";
      button.addEventListener("click", () => this.#choose(range));
      return button;
    });
    byId("ranges").append(...this.#buttons);
    this.#tell();
  }

  // An event's rows, of the shortest range.
  take(message) {
    this.#histories.get(RANGES[0]).take(message);
  }

  series() {
    return this.#histories.get(this.range).series();
  }

  #choose(range) {
    this.range = range;
    this.#tell();
    clearInterval(this.#timer);
    if (range.periodMs) {
      this.#timer = setInterval(() => document.hidden || this.#ask(range), range.periodMs);
      this.#ask(range);
    }
    this.#onChange();
  }

  #tell() {
    setText(byId("charts-title"), this.range.title);
    this.#buttons.forEach((button, index) => setAttribute(button, "aria-pressed", `${RANGES[index] === this.range}`));
  }

  async #ask(range) {
    const answer = await fetch(`dashboard/history/${range.name}`, { headers: this.#keys.headers() }).catch(() => null);
    const problem = answer === null ? "The gateway cannot be reached." : answer.ok ? "" : await problemOf(answer);
    setText(byId("range-problem"), problem);
    if (problem) return;
    this.#histories.get(range).take(await answer.json());
    if (range === this.range) this.#onChange();
  }
}
