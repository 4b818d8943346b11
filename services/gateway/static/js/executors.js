// A row for each executor; one can be drained, and let take requests again.

import { byId, element, KeyedList, row, setAttribute, setText } from "./dom.js";
import { count, figure, percent, short } from "./format.js";
import { OrderDialog } from "./order_dialog.js";

const LABELS = ["Executor", "Online", "Offline", "Step ms", "Budget ms", "Steps/s", "Busy", "Tokens/s", "Entering, tokens planned, computed", "KV blocks", ""];
const CLASSES = ["name", ...Array(8).fill("number"), "wide", "action"];
const OWNERS = ["online", "shared", "offline", "paused", "cached"];

export class Executors {
  #table = byId("executors");
  #rows;

  // access: { mayChange }, as whom the page is open.
  constructor(keys, access) {
    const dialog = new OrderDialog("drain", keys);
    this.#rows = new KeyedList(this.#table.tBodies[0], () => createRow(access, (beat) => askToDrain(beat, dialog)));
  }

  show(now) {
    this.#table.hidden = now.executors.length === 0;
    byId("no-executors").hidden = now.executors.length > 0;
    this.#rows.show(now.executors, (executor) => executor.beat.info.executor_id);
  }
}

function createRow(access, drain) {
  const { node, cells } = row(LABELS, CLASSES);
  const [name, ...figures] = cells;
  const [id, about] = [element("strong"), element("small")];
  name.append(id, about);
  const button = element("button");
  button.type = "button";
  let newest = null;
  button.addEventListener("click", () => drain(newest));
  figures.pop().append(button);
  const bar = new KvBar(figures.pop());
  const update = (executor) => {
    newest = executor.beat;
    button.hidden = !access.mayChange;
    setText(button, newest.draining ? "Undrain" : "Drain");
    setAttribute(button, "aria-label", `${button.textContent} ${newest.info.executor_id}`);
    const { info, draining, counters, offline_waits: waits, slow_step: slow } = executor.beat;
    const { handed_over: given, taken_over: taken } = counters;
    setText(id, info.executor_id);
    const drain = !draining ? "" : holdsNothing(executor.beat) ? ", drained" : ", drains";
    const moves = given + taken > 0 && `requests moved: ${short(given)} away, ${short(taken)} here`;
    const remarks = [executor.model, executor.role_text, moves, waits, slow].filter(Boolean);
    setText(about, [`${info.spec.engine} on ${info.spec.device}${drain}`, ...remarks].join("; "));
    figuresOf(executor).forEach((text, index) => setText(figures[index], text));
    figures[2].classList.toggle("bad", executor.budget_ms !== null && executor.step.mean_ms > executor.budget_ms);
    bar.show(executor.beat);
  };
  return { node, update };
}

function askToDrain({ info, draining }, dialog) {
  const id = info.executor_id;
  setText(byId("drain-executor"), id);
  setText(byId("drain-title"), draining ? "Let this executor take requests again?" : "Drain this executor?");
  const drains = "It gets no new requests, online or offline; those that it has go on to their ends.";
  setText(byId("drain-text"), draining ? "It gets new requests from now on." : drains);
  setText(byId("drain-confirm"), draining ? "Undrain it" : "Drain it");
  dialog.open(`executors/${encodeURIComponent(id)}/${draining ? "undrain" : "drain"}`);
}

const holdsNothing = (beat) =>
  beat.online_running + beat.online_waiting + beat.offline_running + beat.offline_waiting === 0;

function figuresOf({ beat, step, ...rates }) {
  const { entrant_tokens_planned: planned, entrant_tokens_computed: computed } = beat.counters;
  return [
    `${count(beat.online_running)} + ${count(beat.online_waiting)}`,
    `${count(beat.offline_running)} + ${count(beat.offline_waiting)}`,
    `${figure(step.mean_ms)}, ${figure(step.p99_ms)}`,
    figure(rates.budget_ms),
    figure(rates.steps_per_s),
    percent(rates.busy_share),
    `${figure(rates.online_tokens_per_s)}, ${figure(rates.offline_tokens_per_s)}`,
    `${short(planned)}, ${short(computed)}`,
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

  show({ blocks, info, num_wanted_blocks: wanted, num_reserved_blocks: reserved }) {
    const all = info.spec.num_blocks;
    OWNERS.forEach((owner, index) => {
      this.#parts[index].style.width = `${(100 * blocks[owner]) / all}%`;
    });
    const told = OWNERS.filter((owner) => blocks[owner] > 0).map((owner) => `${percent(blocks[owner] / all)} ${owner}`);
    setAttribute(this.#bar, "aria-label", told.join(", ") || "all free");
    const free = `${count(blocks.cached + blocks.paused + blocks.empty)} of ${count(all)} free`;
    const kept = [wanted && `${count(wanted)} wanted`, reserved && `${count(reserved)} reserved`].filter(Boolean);
    setText(this.#text, [free, ...kept].join(", "));
  }
}
