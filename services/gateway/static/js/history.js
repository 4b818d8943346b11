// The rows that the gateway has sent, and those that an earlier gateway sent before it was restarted.

// gapS: without a row, a curve is not drawn across it. The minutes come with the events, the others are asked for.
export const RANGES = [
  { name: "minutes", label: "5 min", title: "The last five minutes", words: "five minutes", spanS: 300, gapS: 3.5 },
  { name: "hour", label: "1 h", title: "The last hour", words: "hour", spanS: 3600, gapS: 35, periodMs: 10_000 },
  { name: "day", label: "1 day", title: "The last day", words: "day", spanS: 86_400, gapS: 1000, periodMs: 60_000 },
];

export class History {
  #columns = [];
  #rows = [];
  #range;

  constructor(range) {
    this.#range = range;
  }

  // With columns, the rows are all that the gateway has; without, the newest.
  take({ columns, rows }) {
    if (columns && columns.join() !== this.#columns.join()) {
      this.#rows = [];
      this.#columns = columns;
    }
    const firstS = rows.length ? rows[0][0] : Infinity;
    this.#rows = [...this.#rows.filter(([unixS]) => unixS < firstS), ...rows];
    const lastS = this.#rows.length ? this.#rows.at(-1)[0] : 0;
    this.#rows = this.#rows.filter(([unixS]) => unixS > lastS - this.#range.spanS);
  }

  // What is shown from here on is of something else.
  clear() {
    this.#rows = [];
  }

  // Arrays by column name, equally long, with a row of nothing in each gap.
  series() {
    const nothing = this.#columns.slice(1).map(() => null);
    const rows = [];
    for (const row of this.#rows) {
      const lastS = rows.length ? rows.at(-1)[0] : row[0];
      if (row[0] - lastS > this.#range.gapS) rows.push([lastS + 1, ...nothing]);
      rows.push(row);
    }
    return Object.fromEntries(this.#columns.map((name, index) => [name, rows.map((row) => row[index])]));
  }
}
