// SLOs, as they are told in a snapshot.

const EXPRESSION = /^(?:online\.)?(ttft|tbt|itl|tpot|normalized_latency)(?:_ms)?[._ ](mean|avg|p50|median|p90|p99)/i;
const SAME = { itl: "tbt", avg: "mean", median: "p50" };

// Of all kinds of executors: { expr, metric, statistic, bound_ms, value_ms, met }.
export function verdicts(now) {
  const statuses = [...now.budgets.map((budget) => budget.slo), ...now.slos];
  return statuses.flatMap((status) => (status?.measured ?? []).map(parsed));
}

// Within how many ms first tokens ("ttft") or later ones ("tbt") are due, where executors go by deadlines: the least of all; else null.
export function dueMs(now, metric) {
  const strategies = now.executors.map(({ beat }) => beat.info.strategy).filter((strategy) => strategy.latency_budget === "deadline");
  const due = strategies.map((strategy) => (metric === "ttft" ? strategy.ttft_slo_ms : strategy.tpot_slo_ms));
  return due.length ? Math.min(...due) : null;
}

export const verdictsOf = (now, metric) => verdicts(now).filter((verdict) => verdict.metric === metric);

// "kept", "broken", or what is not known yet.
export function outcome(verdict) {
  if (verdict.value_ms === null) return { text: "no requests", kind: "" };
  if (verdict.bound_ms === null) return { text: "no bound yet", kind: "" };
  return verdict.met ? { text: "✓ kept", kind: "good" } : { text: "✕ broken", kind: "bad" };
}

function parsed(verdict) {
  const [, metric = "", statistic = ""] = (EXPRESSION.exec(verdict.expr) ?? []).map((part) => part.toLowerCase());
  return { ...verdict, metric: SAME[metric] ?? metric, statistic: SAME[statistic] ?? statistic };
}
