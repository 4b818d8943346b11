// What matters most, in large figures.

import { element, setAttribute, setText } from "./dom.js";
import { count, duration, figure, latency, latencyText, percent } from "./format.js";
import { dueMs, outcome, verdictsOf } from "./slo.js";

// Each gives { value, unit, note, kind }; the kind "good" or "bad" colours the note.
const TILES = [
  { label: "Time to first token", read: (now) => latencyTile(now, "ttft") },
  { label: "Time between tokens", read: (now) => latencyTile(now, "tbt") },
  { label: "Step time", read: stepTile },
  { label: "Offline throughput", read: offlineTile },
  { label: "Online requests", read: onlineTile },
  { label: "Offline queue", read: queueTile },
];

export class Tiles {
  #tiles;

  constructor(container) {
    this.#tiles = TILES.map(({ label, read }) => {
      const [value, unit, note] = ["value", "unit", "note"].map((classes) => element("span", classes));
      const node = element("div", "tile", element("dt", "", label), element("dd", "", value, " ", unit), element("dd", "", note));
      container.append(node);
      return { value, unit, note, read };
    });
  }

  show(now) {
    for (const tile of this.#tiles) {
      const { value, unit, note, kind = "" } = tile.read(now);
      setText(tile.value, value);
      setText(tile.unit, unit);
      setText(tile.note, note);
      setAttribute(tile.note, "class", `note ${kind}`.trim());
    }
  }
}

const sum = (now, read) => now.executors.reduce((total, executor) => total + (read(executor) ?? 0), 0);

// Of the last minute, beside what is to be kept of it: of several SLOs one that is broken, else the first.
function latencyTile(now, metric) {
  const measured = now.online[metric];
  const [value, plainUnit] = latency(measured.p99_ms);
  const unit = plainUnit && `${plainUnit} p99`;
  const verdicts = verdictsOf(now, metric);
  const verdict = verdicts.find((each) => outcome(each).kind === "bad") ?? verdicts[0];
  if (measured.num_samples === 0) return { value, unit, note: "no request in the last minute" };
  const due = dueMs(now, metric);
  const beside = due === null ? "last minute" : `due within ${latencyText(due)}`;
  if (!verdict) return { value, unit, note: `p50 ${latencyText(measured.p50_ms)}, ${beside}` };
  const { text, kind } = outcome(verdict);
  const name = verdict.statistic === "p99" ? "" : `${verdict.statistic} ${latencyText(verdict.value_ms)} `;
  return { value, unit, note: `${name}of ${latencyText(verdict.bound_ms)} ${text}`, kind };
}

function stepTile(now) {
  const steps = now.executors.filter((executor) => executor.step.mean_ms !== null);
  const rate = steps.reduce((total, executor) => total + (executor.steps_per_s ?? 0), 0);
  const weighted = steps.reduce((total, executor) => total + executor.step.mean_ms * (executor.steps_per_s ?? 0), 0);
  const [value, plainUnit] = latency(rate ? weighted / rate : null);
  const unit = plainUnit && `${plainUnit} mean`;
  const budgets = now.executors.map((executor) => executor.budget_ms).filter((budget) => budget !== null);
  const slowdowns = now.executors.map((executor) => executor.online_slowdown).filter((slowdown) => slowdown !== null);
  if (slowdowns.length) return { value, unit, note: `online tokens take ${Math.max(...slowdowns).toFixed(2)} times as long as alone` };
  if (!budgets.length) return { value, unit, note: "no latency budget" };
  return { value, unit, note: `budget ${latencyText(Math.min(...budgets))}` };
}

function offlineTile(now) {
  const running = sum(now, ({ beat }) => beat.offline_running);
  const value = now.executors.length ? figure(sum(now, (executor) => executor.offline_tokens_per_s)) : "–";
  return { value, unit: "tokens/s", note: `${count(running)} ${running === 1 ? "request" : "requests"} running` };
}

function onlineTile(now) {
  const waiting = count(sum(now, ({ beat }) => beat.online_waiting));
  const rate = figure(sum(now, (executor) => executor.online_tokens_per_s));
  const note = `${waiting} waiting, ${rate} tokens/s`;
  return { value: count(sum(now, ({ beat }) => beat.online_running)), unit: "running", note };
}

// Of an order that blends: the time of what waits in computing over that in reading KV, and how well lengths are known.
function orderNote({ compute_density: density, output_length_error: error }) {
  const blend = density === undefined ? "" : `; compute to memory ${figure(density)}`;
  return error === undefined ? blend : `${blend}; lengths off by ${percent(error)}`;
}

function queueTile(now) {
  const open = now.num_open;
  const left = now.left_s === null ? "" : `, about ${duration(now.left_s)}`;
  const note = open ? `${open} open ${open === 1 ? "batch" : "batches"}${left}${orderNote(now.order)}` : "no open batch";
  return { value: count(now.lines_left), unit: now.lines_left === 1 ? "line" : "lines", note };
}
