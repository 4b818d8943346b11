// How far back the charts go.

import { problemOf } from "./connection.js";
import { byId, element, setAttribute, setText } from "./dom.js";
import { History, RANGES } from "./history.js";

export class Ranges {
  range = RANGES[0];
  #histories = new Map(RANGES.map((range) => [range, new History(range)]));
  #buttons;
  #keys;
  #query;
  #onChange;
  #timer = 0;

  // query(): what of the stack is asked for.
  constructor(keys, query, onChange) {
    this.#keys = keys;
    this.#query = query;
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

  // Something else is asked for.
  askAnew() {
    for (const history of this.#histories.values()) history.clear();
    if (this.range.periodMs) this.#ask(this.range);
  }

  series() {
    return this.#histories.get(this.range).series();
  }

  #choose(range) {
    this.range = range;
    this.#tell();
    setText(byId("range-problem"), "");
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
    const query = this.#query();
    const url = `dashboard/history/${range.name}${query}`;
    const answer = await fetch(url, { headers: this.#keys.headers() }).catch(() => null);
    const problem = answer === null ? "The gateway cannot be reached." : answer.ok ? "" : await problemOf(answer);
    const rows = problem ? null : await answer.json();
    if (range !== this.range || query !== this.#query()) return;
    setText(byId("range-problem"), problem);
    if (rows === null) return;
    this.#histories.get(range).take(rows);
    this.#onChange();
  }
}
