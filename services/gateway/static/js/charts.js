// Which curves there are.

import { Chart } from "./chart.js";
import { count, figure, latencyText, percent, short } from "./format.js";
import { verdictsOf } from "./slo.js";

const noRequest = "No online request in the last five minutes.";
const inMs = { unit: "ms", format: latencyText, axis: short };

const CHARTS = [
  {
    title: "Step time",
    ...inMs,
    empty: "No step in the last five minutes.",
    curves: [
      { label: "p99", colour: "step", style: "thin", title: "99 of 100 steps of the ten seconds before were shorter" },
      { label: "mean", colour: "step", style: "line" },
      { label: "budget", colour: "bound", style: "bound", title: "how long a step with offline work may be planned to take" },
    ],
    values: (history) => [history.step_p99_ms, history.step_mean_ms, history.budget_ms],
  },
  {
    title: "Time to first token",
    ...inMs,
    empty: noRequest,
    curves: latencyCurves(),
    values: (history, now) => [history.ttft_p99_ms, history.ttft_p50_ms, bound(history, now, "ttft")],
    boundName: (now) => boundName(now, "ttft"),
  },
  {
    title: "Time between tokens",
    ...inMs,
    empty: noRequest,
    curves: latencyCurves(),
    values: (history, now) => [history.tbt_p99_ms, history.tbt_p50_ms, bound(history, now, "tbt")],
    boundName: (now) => boundName(now, "tbt"),
  },
  {
    title: "Throughput",
    unit: "generated tokens/s",
    format: figure,
    axis: short,
    empty: "No executor in the last five minutes.",
    curves: [
      { label: "offline", colour: "offline", style: "area" },
      { label: "online", colour: "online", style: "line" },
    ],
    values: (history) => [history.offline_tokens_per_s, history.online_tokens_per_s],
  },
  {
    title: "Requests",
    unit: "on executors",
    format: count,
    axis: short,
    empty: "No executor in the last five minutes.",
    curves: [
      { label: "offline running", colour: "offline", style: "line" },
      { label: "online running", colour: "online", style: "line" },
      { label: "online waiting", colour: "online", style: "dotted" },
    ],
    values: (history) => [history.offline_running, history.online_running, history.online_waiting],
  },
  {
    title: "KV blocks",
    unit: "% of all, by owner",
    format: (value) => percent(value / 100),
    axis: (value) => `${value}`,
    empty: "No executor in the last five minutes.",
    stacked: true,
    max: 100,
    curves: [
      { label: "online", colour: "online", style: "area", title: "held by online requests alone" },
      { label: "shared", isRare: true, colour: "shared", style: "area", title: "held by requests of both kinds" },
      { label: "offline", colour: "offline", style: "area", title: "held by offline requests alone" },
      { label: "paused", isRare: true, colour: "paused", style: "area", title: "of paused offline requests: others may take them" },
      { label: "cached", colour: "cached", style: "area", title: "free, and found again by a prompt that begins the same" },
    ],
    values: (history) => kvShares(history),
  },
];

export class Charts {
  #charts;

  constructor(container) {
    this.#charts = CHARTS.map((spec) => ({ spec, chart: new Chart(spec) }));
    container.append(...this.#charts.map(({ chart }) => chart.node));
  }

  // series: as History.series gives them.
  show(series, now) {
    for (const { spec, chart } of this.#charts) {
      if (spec.boundName) chart.nameBound(spec.boundName(now));
      chart.show(series.unix_s, spec.values(series, now));
    }
  }

  redraw() {
    for (const { chart } of this.#charts) chart.redraw();
  }
}

function latencyCurves() {
  return [
    { label: "p99", colour: "online", style: "line" },
    { label: "p50", colour: "online", style: "thin" },
    { label: "SLO", colour: "bound", style: "bound", title: "what is to be kept, of the last minute" },
  ];
}

// The SLO that a chart shows: that of the p99 where there are several.
function shownSlo(now, metric) {
  const verdicts = verdictsOf(now, metric).filter((verdict) => verdict.bound_ms !== null);
  return verdicts.find((verdict) => verdict.statistic === "p99") ?? verdicts[0];
}

// Its bound at each time.
function bound(history, now, metric) {
  const boundMs = shownSlo(now, metric)?.bound_ms ?? null;
  return history.unix_s.map(() => boundMs);
}

const boundName = (now, metric) => `SLO ${shownSlo(now, metric)?.statistic ?? ""}`.trim();

function kvShares(history) {
  const owners = ["online", "shared", "offline", "paused", "cached", "empty"].map((owner) => history[`kv_${owner}`]);
  const shares = owners.map((blocks) =>
    blocks.map((value, index) => {
      const all = owners.reduce((sum, each) => sum + (each[index] ?? 0), 0);
      return value === null || all === 0 ? null : (100 * value) / all;
    }),
  );
  return shares.slice(0, -1);
}
