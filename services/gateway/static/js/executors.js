// A row for each executor.

import { byId, element, KeyedList, row, setAttribute, setText } from "./dom.js";
import { count, figure, percent } from "./format.js";

const LABELS = ["Executor", "Online", "Offline", "Step ms", "Budget ms", "Steps/s", "Busy", "Tokens/s", "KV blocks"];
const CLASSES = ["name", ...Array(7).fill("number"), "wide"];
const OWNERS = ["online", "shared", "offline", "paused", "cached"];

export class Executors {
  #table = byId("executors");
  #rows = new KeyedList(this.#table.tBodies[0], createRow);

  show(now) {
    this.#table.hidden = now.executors.length === 0;
    byId("no-executors").hidden = now.executors.length > 0;
    this.#rows.show(now.executors, (executor) => executor.executor_id);
  }
}

function createRow() {
  const { node, cells } = row(LABELS, CLASSES);
  const [name, ...figures] = cells;
  const [id, about] = [element("strong"), element("small")];
  name.append(id, about);
  const bar = new KvBar(figures.pop());
  const update = (executor) => {
    setText(id, executor.executor_id);
    const drain = executor.drained ? ", drained" : executor.draining ? ", drains" : "";
    setText(about, `${executor.engine} on ${executor.device}${drain}`);
    figuresOf(executor).forEach((text, index) => setText(figures[index], text));
    figures[2].classList.toggle("bad", executor.budget_ms !== null && executor.step_mean_ms > executor.budget_ms);
    bar.show(executor);
  };
  return { node, update };
}

function figuresOf(executor) {
  return [
    `${count(executor.online_running)} + ${count(executor.online_waiting)}`,
    `${count(executor.offline_running)} + ${count(executor.offline_waiting)}`,
    `${figure(executor.step_mean_ms)}, ${figure(executor.step_p99_ms)}`,
    figure(executor.budget_ms),
    figure(executor.steps_per_s),
    percent(executor.busy_share),
    `${figure(executor.online_tokens_per_s)}, ${figure(executor.offline_tokens_per_s)}`,
  ];
}

class KvBar {
  #bar = element("div", "bar");
  #parts;
  #text = element("small", "figures");

  constructor(cell) {
    this.#parts = OWNERS.map((owner) => element("span", `of-${owner}`));
    this.#bar.append(...this.#parts);
    this.#bar.setAttribute("role", "img");
    cell.append(this.#bar, this.#text);
  }

  show({ blocks, num_blocks: all }) {
    OWNERS.forEach((owner, index) => {
      this.#parts[index].style.width = `${(100 * blocks[owner]) / all}%`;
    });
    const told = OWNERS.filter((owner) => blocks[owner] > 0).map((owner) => `${percent(blocks[owner] / all)} ${owner}`);
    setAttribute(this.#bar, "aria-label", told.join(", ") || "all free");
    setText(this.#text, `${count(blocks.cached + blocks.paused + blocks.empty)} of ${count(all)} free`);
  }
}
