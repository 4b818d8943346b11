// Figures as people read them. A dash stands for what is not known.

export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const hundredths = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const count = (value) => (isKnown(value) ? whole.format(value) : UNKNOWN);

// Rates, and milliseconds in columns: a decimal where it says something.
export const figure = (value) => (!isKnown(value) ? UNKNOWN : value < 99.95 ? tenths.format(value) : whole.format(value));

export const short = (value) => (isKnown(value) ? compact.format(value) : UNKNOWN);

export const percent = (share) => (isKnown(share) ? `${whole.format(100 * share)}%` : UNKNOWN);

// A latency and its unit.
export function latency(ms) {
  if (!isKnown(ms)) return [UNKNOWN, ""];
  return ms < 1000 ? [figure(ms), "ms"] : [hundredths.format(ms / 1000), "s"];
}

export const latencyText = (ms) => latency(ms).join(" ").trim();

export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  if (seconds < 90) return `${whole.format(seconds)} s`;
  if (seconds < 5400) return `${whole.format(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${tenths.format(seconds / 3600)} h`;
  return `${whole.format(seconds / 86400)} days`;
}

export function clockAndDay(unixS) {
  const isToday = new Date(unixS * 1000).toDateString() === new Date().toDateString();
  return isToday ? clock(unixS) : `${new Date(unixS * 1000).toLocaleDateString()} ${clock(unixS)}`;
}

export const clock = (unixS) => new Date(unixS * 1000).toLocaleTimeString([], { hour12: false });
