// Which curves there are.

import { Chart } from "./chart.js";
import { count, figure, latencyText, percent, short } from "./format.js";
import { dueMs, verdictsOf } from "./slo.js";

const noRequest = (span) => `No online request in the last ${span}.`;
const noExecutor = (span) => `No executor in the last ${span}.`;
const inMs = { unit: "ms", format: latencyText, axis: short };

const CHARTS = [
  {
    title: "Step time",
    ...inMs,
    empty: (span) => `No step in the last ${span}.`,
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
    title: "End to end",
    ...inMs,
    empty: (span) => `No online request was answered in the last ${span}.`,
    curves: latencyCurves().slice(0, 2),
    values: (history) => [history.e2e_p99_ms, history.e2e_p50_ms],
  },
  {
    title: "Throughput",
    unit: "generated tokens/s",
    format: figure,
    axis: short,
    empty: noExecutor,
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
    empty: noExecutor,
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
    empty: noExecutor,
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
  {
    title: "Offline queue",
    unit: "lines without a result",
    format: count,
    axis: short,
    empty: noExecutor,
    curves: [{ label: "lines left", colour: "offline", style: "area" }],
    values: (history) => [history.lines_left],
  },
  {
    title: "HTTP errors",
    unit: "a minute, at this gateway",
    format: figure,
    axis: short,
    empty: noExecutor,
    curves: [
      { label: "server errors", colour: "bound", style: "line", title: "answered with 500 and above, refusals aside" },
      { label: "refused", colour: "offline", style: "line", title: "valid, and not served now or for this client" },
      { label: "client errors", colour: "online", style: "thin", title: "answered with 400 to 499, refusals aside" },
    ],
    values: (history) => [history.http_server_errors, history.http_refused, history.http_client_errors],
  },
];

export class Charts {
  #charts;

  constructor(container) {
    this.#charts = CHARTS.map((spec) => ({ spec, chart: new Chart(spec) }));
    container.append(...this.#charts.map(({ chart }) => chart.node));
  }

  // series: as History.series gives them; nothing while no row of the range has come.
  show(series, now, range) {
    if (!series.unix_s) return;
    for (const { spec, chart } of this.#charts) {
      if (spec.boundName) chart.nameBound(spec.boundName(now));
      chart.show(series.unix_s, spec.values(series, now), range);
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

// Its bound at each time, or the deadline.
function bound(history, now, metric) {
  const boundMs = shownSlo(now, metric)?.bound_ms ?? dueMs(now, metric);
  return history.unix_s.map(() => boundMs);
}

function boundName(now, metric) {
  const slo = shownSlo(now, metric);
  return !slo && dueMs(now, metric) !== null ? "due" : `SLO ${slo?.statistic ?? ""}`.trim();
}

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
