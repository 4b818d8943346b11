// The API key, where the gateway asks for one: kept in this tab, and nowhere else.

import { byId } from "./dom.js";

const STORED = "slackwater.key";

export class Keys {
  onForget = () => {};
  #dialog = byId("key-dialog");
  #forget = byId("forget-key");
  #resolve = null; // of who waits for a key

  constructor() {
    byId("key-form").addEventListener("submit", () => {
      sessionStorage.setItem(STORED, byId("key").value.trim());
      byId("key").value = "";
      this.#show();
      this.#resolve?.();
      this.#resolve = null;
    });
    this.#dialog.addEventListener("close", () => {
      if (this.#resolve) this.#dialog.showModal(); // without a key there is nothing to see
    });
    this.#forget.addEventListener("click", () => {
      sessionStorage.removeItem(STORED);
      this.#show();
      this.onForget();
    });
    this.#show();
  }

  current() {
    return sessionStorage.getItem(STORED);
  }

  // Of a request that is sent with it.
  headers() {
    const key = this.current();
    return key ? { Authorization: `Bearer ${key}` } : {};
  }

  // Returns once there is one. wasRefused: the one that was sent is not known.
  ask(wasRefused) {
    sessionStorage.removeItem(STORED);
    this.#show();
    byId("key-problem").textContent = wasRefused ? "This key is not known here, or it was revoked." : "";
    if (!this.#dialog.open) this.#dialog.showModal();
    return new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  #show() {
    this.#forget.hidden = this.current() === null;
  }
}
