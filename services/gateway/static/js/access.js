// As whom the page is open, and what each key has done.

import { byId, element, KeyedList, row, setText } from "./dom.js";
import { count } from "./format.js";

const PERIOD_MS = 5000;
const LABELS = ["Key", "Requests", "Errors", "Refused", "Prompt tokens", "Output tokens"];
const CLASSES = ["name", ...Array(5).fill("number")];
const ROLES = { admin: "", user: "watching: this key may not drain executors or cancel batches" };

export class Access {
  mayChange = false; // until the gateway has said so
  #keys;
  #rows = new KeyedList(byId("key-uses").tBodies[0], createRow);

  constructor(keys) {
    this.#keys = keys;
    setInterval(() => document.hidden || this.ask(), PERIOD_MS);
  }

  // What is shown stays where the gateway does not answer.
  async ask() {
    const answer = await fetch("dashboard/access", { headers: this.#keys.headers() }).catch(() => null);
    if (!answer?.ok) return;
    const { role, key_name: name, keys } = await answer.json();
    this.mayChange = role === "admin";
    const words = [name && `key ${name}`, ROLES[role]].filter(Boolean);
    byId("role").hidden = words.length === 0;
    setText(byId("role"), words.join(", "));
    const uses = Object.entries(keys);
    byId("key-uses-section").hidden = uses.length === 0;
    this.#rows.show(uses, ([each]) => each);
  }
}

function createRow() {
  const { node, cells } = row(LABELS, CLASSES);
  const update = ([name, use]) => {
    const figures = [use.requests, use.errors, use.refused, use.prompt_tokens, use.output_tokens].map(count);
    const texts = [name || "without a key", ...figures];
    texts.forEach((text, index) => setText(cells[index], text));
  };
  return { node, update };
}
