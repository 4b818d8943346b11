// The latency budget of each kind of executor: where it comes from, how the SLOs are kept, and the runs that show it.

import { byId, element, KeyedList, row, setAttribute, setText } from "./dom.js";
import { count, duration, figure, latencyText, UNKNOWN } from "./format.js";
import { dueMs, outcome } from "./slo.js";

const SOURCES = {
  fixed: "as the setting budget_ms has it",
  tolerance: "as much as the setting tolerance lets offline work add: neither a budget nor an SLO is given",
  "slo-start": "a first guess, the smallest bound on TBT: nothing has been searched yet",
  slo: "found by a search with the recorded workload",
  feedback: "found by a search, corrected by what users got",
  profiling: "of a live search that runs now",
};
const WITHOUT_BUDGET = "decides by itself how much offline work a step takes: it has no latency budget to show.";
const NO_BUDGET = { latency_budget_ms: null, tolerance: null, idle_budget_ms: 0, source: "the preset has none", profile: null };

export class Budgets {
  #cards = new KeyedList(byId("budgets"), createCard);

  show(now) {
    const kept = now.slos.map((slo) => ({ ...NO_BUDGET, profile_key: slo.profile_key, slo }));
    this.#cards.show([...now.budgets, ...kept], (budget) => budget.profile_key);
    const none = byId("no-budget");
    none.hidden = now.budgets.length > 0;
    const preset = `The preset ${now.preset} ${WITHOUT_BUDGET}${dueText(now)}`;
    setText(none, now.preset ? preset : "No budget has been published yet.");
  }
}

function dueText(now) {
  const [first, later] = [dueMs(now, "ttft"), dueMs(now, "tbt")];
  return first === null ? "" : ` First tokens are due within ${latencyText(first)}, later ones within ${latencyText(later)} each.`;
}

function createCard() {
  const [value, source, key] = [element("strong", "value"), element("p", "source"), element("p", "hint")];
  const [slos, noSlo, evidence] = [element("div"), element("p", "empty"), new Evidence()];
  noSlo.append("Give users a promise: ", element("code", "", "slackwater up --slo 'ttft_p99<=800ms'"));
  const promises = element("div", "promises", slos, noSlo);
  const node = element("div", "panel budget", element("div", "", value, source, key), promises, evidence.node);
  const list = new SloTable(slos);
  const update = (budget) => {
    const isTolerance = budget.tolerance !== null;
    setText(value, isTolerance ? `${figure(100 * budget.tolerance)} %` : `${figure(budget.latency_budget_ms)} ms`);
    const idle = budget.idle_budget_ms ? `; ${figure(budget.idle_budget_ms)} ms a step while no online request is there` : "";
    const what = isTolerance ? "of the time that online tokens take alone" : "a step";
    setText(source, `${what}: ${SOURCES[budget.source] ?? budget.source}${idle}`);
    setText(key, budget.profile_key);
    slos.hidden = budget.slo === null;
    noSlo.hidden = budget.slo !== null;
    if (budget.slo) list.show(budget.slo);
    evidence.show(budget);
  };
  return { node, update };
}

class SloTable {
  #rows;
  #state = element("p", "hint");

  constructor(container) {
    const head = element("tr", "", ...["SLO", "Last minute", "Bound", ""].map((text, index) => header(text, index === 1 || index === 2)));
    const table = element("table", "", element("thead", "", head), element("tbody"));
    table.setAttribute("aria-label", "SLOs over the last minute");
    container.append(table, this.#state);
    this.#rows = new KeyedList(table.tBodies[0], createVerdict);
  }

  show(slo) {
    this.#rows.show(slo.measured, (verdict) => verdict.expr);
    setText(this.#state, `State: ${slo.state}${slo.note ? `; ${slo.note}` : ""}`);
  }
}

function createVerdict(verdict) {
  const { node, cells } = row(["SLO", "Last minute", "Bound", ""], ["name", "number", "number", ""]);
  cells[0].append(element("code", "", verdict.expr));
  const update = (fresh) => {
    setText(cells[1], latencyText(fresh.value_ms));
    setText(cells[2], latencyText(fresh.bound_ms));
    const { text, kind } = outcome(fresh);
    setText(cells[3], text);
    setAttribute(cells[3], "class", kind);
  };
  return { node, update };
}

// Drawn anew only when there is another profile: while somebody reads it, it stays.
class Evidence {
  node = element("details");
  #summary = element("summary");
  #body = element("div");
  #shown = null;

  constructor() {
    this.node.append(this.#summary, this.#body);
    this.node.open = matchMedia("(min-width: 700px)").matches;
  }

  show({ profile }) {
    this.node.hidden = profile === null;
    if (!profile) return;
    const ago = duration(Math.max(0, Date.now() / 1000 - profile.profiled_at_s));
    setText(this.#summary, `Searched ${ago} ago: ${profile.trials.length} runs (${profile.why || "asked"})`);
    if (profile.profiled_at_s === this.#shown) return;
    this.#shown = profile.profiled_at_s;
    this.#body.replaceChildren(element("p", "hint", workloadText(profile)), trialTable(profile), conclusion(profile));
  }
}

function workloadText({ runs_on: runsOn, workload }) {
  const lengths = `${count(workload.input_tokens_mean)} tokens in and ${count(workload.output_tokens_mean)} out on average`;
  const requests = `${count(workload.requests)} requests over ${duration(workload.duration_s)}`;
  return `Each run replays the ${workload.source} workload (${requests}, ${lengths}) ${runsOn === "live" ? "live" : "in the simulator"}, beside offline work up to a budget.`;
}

function trialTable(profile) {
  const titles = ["Budget", "Offline tokens/s, in and out", ...profile.slos, ""];
  const head = element("tr", "", ...titles.map((title, index) => header(title, index < titles.length - 1)));
  const trials = profile.trials.toSorted((one, other) => one.value - other.value);
  const body = element("tbody", "", ...trials.map((trial) => trialRow(trial, profile, titles)));
  const table = element("table", "trials", element("thead", "", head), body);
  table.setAttribute("aria-label", "Runs of the search, by budget");
  const scroller = element("div", "scroller", table);
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "region");
  scroller.setAttribute("aria-label", "Runs of the search");
  return scroller;
}

function trialRow(trial, profile, titles) {
  const { node, cells } = row(titles, [...titles.slice(1).map(() => "number"), ""]);
  const isChosen = trial.value === profile.value;
  setText(cells[0], trial.value ? `${figure(trial.value)} ms` : "no offline work");
  setText(cells[1], figure(trial.offline_tokens_per_s));
  profile.slos.forEach((expr, index) => {
    const verdict = trial.verdicts.find((each) => each.expr === expr);
    const { value_ms: valueMs = null, met = true } = verdict ?? {};
    setText(cells[2 + index], valueMs === null ? UNKNOWN : `${latencyText(valueMs)}${met ? "" : " ✕"}`);
    cells[2 + index].classList.toggle("bad", !met);
  });
  setText(cells.at(-1), isChosen ? "✓ chosen" : trial.met ? "kept" : "broken");
  node.classList.toggle("chosen", isChosen);
  return node;
}

function conclusion({ value, reachable }) {
  if (value !== null) return "";
  const why = reachable ? "no run with offline work kept every SLO" : "even without offline work an SLO is broken";
  return element("p", "bad", `Offline work waits: ${why}.`);
}

function header(text, isNumber) {
  const cell = element("th", isNumber ? "number" : "", text);
  cell.scope = "col";
  return cell;
}
