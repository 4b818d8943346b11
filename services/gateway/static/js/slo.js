// SLOs, as they are told in a snapshot.

const EXPRESSION = /^(?:online\.)?(ttft|tbt|itl|tpot|normalized_latency)(?:_ms)?[._ ](mean|avg|p50|median|p90|p99)/i;
const SAME = { itl: "tbt", avg: "mean", median: "p50" };

// Of all kinds of executors: { expr, metric, statistic, bound_ms, value_ms, met }.
export function verdicts(now) {
  return now.budgets.flatMap((budget) => (budget.slo?.measured ?? []).map(parsed));
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
