// The rows that the gateway has sent, and those that an earlier gateway sent before it was restarted.

export const SPAN_S = 300;
const GAP_S = 3.5; // without a row: a curve is not drawn across it

export class History {
  #columns = [];
  #rows = [];

  // With columns, the rows are all that the gateway has; without, the newest.
  take({ columns, rows }) {
    if (columns && columns.join() !== this.#columns.join()) {
      this.#rows = [];
      this.#columns = columns;
    }
    const firstS = rows.length ? rows[0][0] : Infinity;
    this.#rows = [...this.#rows.filter(([unixS]) => unixS < firstS), ...rows];
    const lastS = this.#rows.length ? this.#rows.at(-1)[0] : 0;
    this.#rows = this.#rows.filter(([unixS]) => unixS > lastS - SPAN_S);
  }

  // Arrays by column name, equally long, with a row of nothing in each gap.
  series() {
    const nothing = this.#columns.slice(1).map(() => null);
    const rows = [];
    for (const row of this.#rows) {
      const lastS = rows.length ? rows.at(-1)[0] : row[0];
      if (row[0] - lastS > GAP_S) rows.push([lastS + 1, ...nothing]);
      rows.push(row);
    }
    return Object.fromEntries(this.#columns.map((name, index) => [name, rows.map((row) => row[index])]));
  }
}
