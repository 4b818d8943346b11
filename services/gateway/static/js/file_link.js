// A link to a stored file. A link cannot send a key: with one, the file is fetched and handed to the browser.

import { problemOf } from "./connection.js";
import { element, setAttribute, setText } from "./dom.js";

export class FileLink {
  node = element("a");
  #text;
  #keys;

  constructor(text, keys) {
    this.#text = text;
    this.#keys = keys;
    this.node.addEventListener("click", (event) => {
      if (!this.#keys.current()) return;
      event.preventDefault();
      this.#fetch();
    });
  }

  // fileId: null for none.
  show(fileId) {
    this.node.hidden = fileId === null;
    if (fileId === null || this.node.download === `${fileId}.jsonl`) return;
    setText(this.node, this.#text);
    setAttribute(this.node, "href", `v1/files/${encodeURIComponent(fileId)}/content`);
    this.node.download = `${fileId}.jsonl`;
  }

  async #fetch() {
    try {
      const answer = await fetch(this.node.href, { headers: this.#keys.headers() });
      if (!answer.ok) throw new Error(await problemOf(answer));
      const saving = element("a");
      saving.href = URL.createObjectURL(await answer.blob());
      saving.download = this.node.download;
      saving.click();
      URL.revokeObjectURL(saving.href);
      setText(this.node, this.#text);
    } catch (error) {
      setText(this.node, `${this.#text}: ${error.message}`);
    }
  }
}
