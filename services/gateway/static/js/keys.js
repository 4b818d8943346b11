// The API key, where the gateway asks for one: kept in this tab, and nowhere else.

import { byId } from "./dom.js";

const STORED = "slackwater.key";
const SENDABLE = /^[\x20-\x7e]*$/; // in a header; what was copied with the key, and is not seen, may not be

export class Keys {
  onForget = () => {};
  #dialog = byId("key-dialog");
  #forget = byId("forget-key");
  #resolve = null; // of who waits for a key

  constructor() {
    byId("key-form").addEventListener("submit", (event) => {
      const given = byId("key").value.trim();
      if (!SENDABLE.test(given)) {
        event.preventDefault();
        byId("key-problem").textContent = "No key has such characters in it; copy it again.";
        return;
      }
      sessionStorage.setItem(STORED, given);
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
