// One chart: its curves over the last minutes, and their figures above it: now, or where the pointer is.

import { element, setAttribute, setText } from "./dom.js";
import { UNKNOWN } from "./format.js";
import { RANGES } from "./history.js";
import { colour } from "./theme.js";

const HEIGHT = 168;
const AXIS_WIDTH = 46;
const FULL_BOUND = 4; // a bound so many times above the curves would flatten them: it is named, not drawn
const STROKES = { line: { width: 2 }, thin: { width: 1.25 }, dotted: { width: 1.75, dash: [2, 3] }, bound: { width: 1.5, dash: [7, 4] } };

export class Chart {
  #host;
  #spec;
  #plot = null;
  #data = null;
  #labels;
  #picture;
  #empty;
  #top = 1;
  #range = RANGES[0];

  // spec: { title, unit, curves: [{ label, colour, style, title, isRare }], format, empty(words), max }. Styles are those of STROKES,
  // and "area"; with `stacked`, curves are areas on top of each other, the first at the bottom.
  constructor(spec) {
    this.#spec = spec;
    this.#labels = spec.curves.map((curve) => legendItem(curve));
    this.#host = element("div", "plot");
    this.#empty = element("p", "plot-empty", "");
    this.#picture = element("div", "picture", this.#host, this.#empty);
    this.#picture.tabIndex = 0;
    this.#picture.setAttribute("role", "img");
    const legend = element("ul", "legend", ...this.#labels.map((label) => label.node));
    const title = element("h3", "", spec.title, element("small", "", spec.unit));
    this.node = element("figure", "panel chart", title, legend, this.#picture);
    new ResizeObserver(() => this.#resize()).observe(this.#host);
    this.#picture.addEventListener("keydown", (event) => this.#onKey(event));
    this.#picture.addEventListener("blur", () => this.#moveTo(null));
  }

  // times: unix seconds; values: an array for each curve, equally long; range: one of RANGES.
  show(times, values, range) {
    this.#range = range;
    setText(this.#empty, this.#spec.empty(range.words));
    this.#data = [times, ...(this.#spec.stacked ? stack(values) : values)];
    this.#values = values;
    this.#top = this.#spec.max ?? highest(values, this.#spec.curves);
    const hasAny = values.some((each, index) => !isBound(this.#spec.curves[index]) && each.some(isNumber));
    this.#empty.hidden = hasAny;
    if (this.#plot === null) this.#draw();
    else this.#plot.setData(this.#ordered());
    this.#tell(this.#plot?.cursor.idx ?? null);
  }

  nameBound(name) {
    const index = this.#spec.curves.findIndex(isBound);
    setText(this.#labels[index].name, name);
  }

  // In the colours that hold now.
  redraw() {
    this.#plot?.destroy();
    this.#plot = null;
    if (this.#data) this.#draw();
  }

  #values = [];

  // uPlot draws later series above earlier ones: of a stack the highest comes first.
  #ordered() {
    const [times, ...curves] = this.#data;
    return [times, ...(this.#spec.stacked ? curves.toReversed() : curves)];
  }

  #draw() {
    const width = this.#host.clientWidth;
    if (!width) return;
    const { curves, stacked } = this.#spec;
    const drawn = stacked ? curves.toReversed() : curves;
    const options = {
      width,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 16, 0, 0],
      cursor: {
        y: false,
        drag: { x: false, y: false },
        sync: { key: "slackwater" },
        points: { size: 6, show: !stacked },
      },
      scales: {
        x: { time: false, range: () => [this.#lastS() - this.#range.spanS, this.#lastS()] },
        y: { range: () => [0, this.#top] },
      },
      axes: [this.#timeAxis(), this.#valueAxis()],
      series: [{}, ...drawn.map((curve) => this.#series(curve))],
      hooks: { setCursor: [(plot) => this.#tell(plot.cursor.idx)] },
    };
    this.#plot = new globalThis.uPlot(options, this.#ordered(), this.#host);
  }

  #series(curve) {
    const stroke = colour(curve.colour);
    if (this.#spec.stacked) return { stroke, fill: stroke, width: 0, points: { show: false } };
    const { width, dash } = STROKES[curve.style] ?? STROKES.line;
    const fill = curve.style === "area" ? colour(`${curve.colour}-fill`) : undefined;
    return { stroke, width, dash, fill, points: { show: false } };
  }

  #timeAxis() {
    return {
      ...this.#axis(),
      size: 26,
      gap: 4,
      splits: (plot, index, min, max) => [4, 3, 2, 1, 0].map((part) => max - (part * this.#range.spanS) / 5),
      values: (plot, splits) => splits.map((at) => agoText(this.#lastS() - at)),
    };
  }

  #valueAxis() {
    return { ...this.#axis(), size: AXIS_WIDTH, gap: 4, space: 34, values: (plot, splits) => splits.map(this.#spec.axis) };
  }

  #axis() {
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    return { stroke: colour("muted"), font, grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
  }

  #lastS() {
    return this.#data[0].at(-1) ?? 0;
  }

  #resize() {
    const width = this.#host.clientWidth;
    if (!width || !this.#data) return;
    if (this.#plot === null) this.#draw();
    else if (this.#plot.width !== width) this.#plot.setSize({ width, height: HEIGHT });
  }

  // The figures at this index; null: the newest.
  #tell(index) {
    const told = this.#labels.map((label, curve) => {
      const value = this.#values[curve]?.at(index ?? -1) ?? null;
      const text = value === null ? UNKNOWN : this.#spec.format(value);
      const isOff = isBound(this.#spec.curves[curve]) && value !== null && value > this.#top;
      setText(label.value, isOff ? `${text} (off the scale)` : text);
      label.node.classList.toggle("absent", this.#isAbsent(curve, value));
      return `${label.name.textContent} ${text}`;
    });
    setAttribute(this.#picture, "aria-label", `${this.#spec.title}, ${this.#spec.unit}. ${told.join(", ")}`);
  }

  // There is no such bound, or no such part of the stack: not worth a place in the legend.
  #isAbsent(curve, value) {
    if (isBound(this.#spec.curves[curve])) return value === null;
    return Boolean(this.#spec.curves[curve].isRare) && !this.#values[curve].some((each) => each > 0);
  }

  #onKey(event) {
    const step = { ArrowLeft: -5, ArrowRight: 5 }[event.key];
    if (!step || !this.#plot) return;
    event.preventDefault();
    const last = this.#data[0].length - 1;
    this.#moveTo(Math.min(last, Math.max(0, (this.#plot.cursor.idx ?? last) + step)));
  }

  #moveTo(index) {
    if (!this.#plot) return;
    const left = index === null ? -10 : this.#plot.valToPos(this.#data[0][index], "x");
    this.#plot.setCursor({ left, top: index === null ? -10 : 1 });
  }
}

function agoText(seconds) {
  if (seconds < 1) return "now";
  return seconds < 5400 ? `−${Math.round(seconds / 60)} min` : `−${(seconds / 3600).toFixed(1)} h`;
}

const isNumber = (value) => value !== null;
const isBound = (curve) => curve.style === "bound";

function legendItem(curve) {
  const value = element("b");
  const swatch = element("span", `swatch ${curve.style} of-${curve.colour}`);
  const name = element("span", "", curve.label);
  const node = element("li", "", swatch, name, value);
  if (curve.title) node.title = curve.title;
  return { node, name, value };
}

// The top of the scale: a little above the curves, and above a bound that is not far from them.
function highest(values, curves) {
  const most = (each) => each.reduce((top, value) => Math.max(top, value ?? 0), 0);
  const top = Math.max(0, ...values.filter((each, index) => !isBound(curves[index])).map(most));
  const bounds = values.filter((each, index) => isBound(curves[index])).map(most);
  const near = bounds.filter((bound) => top === 0 || bound <= FULL_BOUND * top);
  return 1.08 * Math.max(top, ...near) || 1;
}

function stack(values) {
  let below = null;
  return values.map((each) => {
    below = each.map((value, index) => (value === null ? null : value + (below?.[index] ?? 0)));
    return below;
  });
}
