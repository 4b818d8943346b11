// Which of several models the page is of: one, or all together.

import { element, setText } from "./dom.js";

export class ModelSwitch {
  #select;
  #names = [];

  // onChange is called when another one is chosen.
  constructor(select, onChange) {
    this.#select = select;
    select.addEventListener("change", onChange);
  }

  // What is to be asked for, as the end of a URL.
  query() {
    return this.#select.value ? `?model=${encodeURIComponent(this.#select.value)}` : "";
  }

  // The name stands in the label while there is no choice.
  show({ model, models }, label) {
    this.#select.hidden = models.length < 2;
    label.hidden = !this.#select.hidden;
    setText(label, model);
    if (models.join("\n") === this.#names.join("\n")) return;
    const chosen = models.includes(this.#select.value) ? this.#select.value : "";
    this.#names = models;
    this.#select.replaceChildren(optionOf("", "All models"), ...models.map((name) => optionOf(name, name)));
    this.#select.value = chosen;
  }
}

function optionOf(value, text) {
  const option = element("option", "", text);
  option.value = value;
  return option;
}
