// Asks before something is changed, and sends it where the answer is yes.

import { problemOf } from "./connection.js";
import { byId, setText } from "./dom.js";

export class OrderDialog {
  #dialog;
  #problem;
  #confirm;
  #keys;
  #path = "";

  // name: what the ids of the dialog's parts begin with.
  constructor(name, keys) {
    this.#keys = keys;
    this.#dialog = byId(`${name}-dialog`);
    this.#problem = byId(`${name}-problem`);
    this.#confirm = byId(`${name}-confirm`);
    byId(`${name}-keep`).addEventListener("click", () => this.#dialog.close());
    byId(`${name}-form`).addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
  }

  // path: where the order is posted to.
  open(path) {
    this.#path = path;
    this.#confirm.disabled = false;
    setText(this.#problem, "");
    this.#dialog.showModal();
  }

  // What an order before this one came to is nothing to the one that is asked about by then.
  async #send() {
    const path = this.#path;
    this.#confirm.disabled = true;
    const problem = await this.#ordered(path);
    if (path !== this.#path) return;
    this.#confirm.disabled = false;
    if (problem) setText(this.#problem, problem);
    else this.#dialog.close();
  }

  // Empty, or why it was not done.
  async #ordered(path) {
    try {
      const answer = await fetch(path, { method: "POST", headers: this.#keys.headers() });
      return answer.ok ? "" : await problemOf(answer);
    } catch {
      return "The gateway cannot be reached; try again.";
    }
  }
}
