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
    setText(this.#problem, "");
    this.#dialog.showModal();
  }

  async #send() {
    this.#confirm.disabled = true;
    try {
      const answer = await fetch(this.#path, { method: "POST", headers: this.#keys.headers() });
      if (answer.ok) this.#dialog.close();
      else setText(this.#problem, await problemOf(answer));
    } catch {
      setText(this.#problem, "The gateway cannot be reached; try again.");
    } finally {
      this.#confirm.disabled = false;
    }
  }
}
