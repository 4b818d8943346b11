// From the gateway's events to the page.

import { Access } from "./access.js";
import { Batches } from "./batches.js";
import { Budgets } from "./budget.js";
import { Charts } from "./charts.js";
import { Connection } from "./connection.js";
import { byId, element, setText } from "./dom.js";
import { Executors } from "./executors.js";
import { clock, duration } from "./format.js";
import { Keys } from "./keys.js";
import { ModelSwitch } from "./model_switch.js";
import { Ranges } from "./ranges.js";
import { Services } from "./services.js";
import { setUpTheme } from "./theme.js";
import { Tiles } from "./tiles.js";

const STALE_MS = 3000; // news come each second
const STATUS = { connecting: "Connecting", live: "Live", stale: "Stale", lost: "Not connected", key: "Needs a key" };

class Dashboard {
  #tiles = new Tiles(byId("tiles"));
  #charts = new Charts(byId("charts"));
  #budgets = new Budgets();
  #services = new Services();
  #executors;
  #batches;
  #ranges;
  #models;
  #newest = null;
  #state = "connecting";
  #why = "";
  #lastMs = null; // when the newest figures came
  #lastUnixS = 0; // whose they are

  constructor() {
    const keys = new Keys();
    const access = new Access(keys);
    this.#batches = new Batches(keys, access);
    this.#executors = new Executors(keys, access);
    this.#models = new ModelSwitch(byId("models"), () => {
      this.#newest = null;
      this.#ranges.askAnew();
      connection.askAnew();
    });
    const query = () => this.#models.query();
    this.#ranges = new Ranges(keys, query, () => this.#draw());
    const connection = new Connection({
      keys,
      query,
      onMessage: (message) => this.#show(message),
      onState: (state, why) => {
        if (state === "live" && this.#state !== "live") access.ask();
        const isRetrying = state === "connecting" && this.#state === "lost";
        if (!isRetrying) this.#tell(state, why);
      },
    });
    keys.onForget = () => connection.restart();
    setUpTheme(byId("theme"), () => this.#charts.redraw());
    setInterval(() => this.#tell(this.#state, this.#why), 500);
    connection.run();
  }

  #show(message) {
    const { now } = message;
    this.#ranges.take(message);
    this.#newest = now;
    this.#lastMs = Date.now();
    this.#lastUnixS = now.unix_s;
    this.#models.show(now, byId("model"));
    setText(byId("preset"), now.preset ? `preset ${now.preset}` : "");
    document.title = `Slackwater: ${now.model}`;
    this.#tiles.show(now);
    this.#draw();
    this.#batches.show(now);
    this.#executors.show(now);
    this.#budgets.show(now);
    this.#services.show(now);
    showUnwell(now.unwell);
  }

  #draw() {
    if (this.#newest) this.#charts.show(this.#ranges.series(), this.#newest, this.#ranges.range);
  }

  // Also called twice a second: whether figures are old is a matter of time.
  #tell(state, why) {
    this.#state = state;
    this.#why = why;
    const ageMs = this.#lastMs === null ? 0 : Date.now() - this.#lastMs;
    const isStale = this.#lastMs !== null && ageMs > STALE_MS;
    const shown = isStale && state !== "key" ? "stale" : state;
    document.body.dataset.state = shown;
    byId("status").dataset.state = shown;
    setText(byId("status-text"), STATUS[shown]);
    const notice = byId("stale");
    notice.hidden = !isStale && state !== "lost";
    const old = isStale ? `No news for ${duration(ageMs / 1000)}: these are the figures of ${clock(this.#lastUnixS)}.` : "";
    const cause = state === "lost" ? ` ${why[0].toUpperCase()}${why.slice(1)}.` : "";
    setText(notice, `${old}${cause} Trying again.`.trim());
  }
}

function showUnwell(unwell) {
  const list = byId("unwell");
  list.hidden = unwell.length === 0;
  if (list.textContent !== unwell.join("")) list.replaceChildren(...unwell.map((each) => element("li", "", each)));
}

new Dashboard();
