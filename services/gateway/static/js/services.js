// Processes that answer, and what this gateway answered with an error or refused.

import { byId, element, KeyedList, row, setText } from "./dom.js";
import { clockAndDay, count } from "./format.js";

const LABELS = ["Process", "Health", "Up since", "Restarts"];
const CLASSES = ["name", "", "number", "number"];

export class Services {
  #rows = new KeyedList(byId("processes").tBodies[0], createRow);
  #errors = new Tally(byId("http-errors"), "No error.");
  #refusals = new Tally(byId("http-refusals"), "Nothing was refused.");

  show(now) {
    this.#rows.show(now.processes, processKey);
    this.#errors.show(now.http.errors);
    this.#refusals.show(now.http.refusals);
  }
}

// Several may have one name, such as gateways, and in containers one pid too.
const processKey = ({ name, pid, started_s: startedS }) => `${name} ${pid} ${startedS}`;

function createRow() {
  const { node, cells } = row(LABELS, CLASSES);
  const [name, health, since, restarts] = cells;
  const [id, pid] = [element("strong"), element("small")];
  name.append(id, pid);
  const update = (process) => {
    setText(id, process.name);
    setText(pid, `pid ${process.pid}`);
    setText(health, process.health);
    health.classList.toggle("bad", !process.is_well);
    setText(since, clockAndDay(process.started_s));
    setText(restarts, count(process.restarts));
    restarts.classList.toggle("bad", process.restarts > 0);
  };
  return { node, update };
}

class Tally {
  #empty;
  #items;

  constructor(list, nothing) {
    this.#empty = element("p", "empty", nothing);
    list.before(this.#empty);
    this.#items = new KeyedList(list, () => {
      const [name, value] = [element("span"), element("b")];
      const update = ([key, number]) => {
        setText(name, `${key.replaceAll("_", " ")} `);
        setText(value, count(number));
      };
      return { node: element("li", "", name, value), update };
    });
  }

  // counts: by what they are of.
  show(counts) {
    const entries = Object.entries(counts).sort(([, one], [, other]) => other - one);
    this.#empty.hidden = entries.length > 0;
    this.#items.show(entries, ([key]) => key);
  }
}
