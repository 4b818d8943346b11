// The gateway's events, read with fetch: EventSource cannot send a key. Tries again for ever.

const RETRY_MS = [500, 1000, 2000, 4000];
const SILENT_MS = 5000; // without a byte, though one comes each second: the connection is dead
const HIDDEN_MS = 30000; // a page that nobody sees costs the gateway nothing

export class Connection {
  #keys;
  #onMessage;
  #onState;
  #query;
  #isRestarted = false;
  #failures = 0;
  #watchdog = 0;
  #aborting = new AbortController();

  // keys: { current(), headers(), ask(wasRefused) }. query(): what of the stack is asked for. onState gets
  // "connecting", "live", "lost" or "key", and why.
  constructor({ keys, query, onMessage, onState }) {
    this.#keys = keys;
    this.#query = query;
    this.#onMessage = onMessage;
    this.#onState = onState;
    let hiding = 0;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(hiding);
      if (document.hidden) hiding = setTimeout(() => this.#abort("the page was hidden"), HIDDEN_MS);
    });
  }

  async run() {
    for (;;) {
      await whenVisible();
      this.#onState("connecting", "");
      const why = await this.#read().catch((error) => this.#aborting.signal.reason ?? reasonOf(error));
      const isRestarted = this.#isRestarted;
      this.#isRestarted = false;
      if (why === null || isRestarted) continue;
      this.#onState("lost", why);
      await sleep(RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)]);
    }
  }

  // Ends the connection, and begins another with what the keys are then.
  restart() {
    this.#abort("the key was forgotten");
  }

  // As restart, at once: something else is asked for.
  askAnew() {
    this.#isRestarted = true;
    this.#abort("something else is asked for");
  }

  #abort(why) {
    this.#aborting.abort(why);
  }

  // Something has to come from now on.
  #expect() {
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => this.#abort("nothing comes from the gateway"), SILENT_MS);
  }

  // Until the stream ends: why, or null where it is to be tried again at once.
  async #read() {
    const key = this.#keys.current();
    this.#aborting = new AbortController();
    const asked = { headers: this.#keys.headers(), signal: this.#aborting.signal, cache: "no-store" };
    this.#expect();
    const answer = await fetch(`dashboard/events${this.#query()}`, asked).finally(() => clearTimeout(this.#watchdog));
    if (answer.status === 401) {
      this.#onState("key", "");
      await this.#keys.ask(Boolean(key));
      return null;
    }
    if (!answer.ok) return await problemOf(answer);
    await this.#readEvents(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    return "the gateway ended the connection";
  }

  async #readEvents(reader) {
    let pending = "";
    try {
      for (;;) {
        this.#expect();
        const { value, done } = await reader.read();
        if (done) return;
        const events = (pending + value).split("\n\n");
        pending = events.pop();
        for (const event of events) this.#take(event);
      }
    } finally {
      clearTimeout(this.#watchdog);
    }
  }

  #take(event) {
    this.#failures = 0;
    this.#onMessage(JSON.parse(event.slice(event.indexOf("{"))));
    this.#onState("live", "");
  }
}

// What an answer with an error says; one of something on the way may be anything.
export async function problemOf(answer) {
  const said = await answer.json().then(({ error }) => error.message).catch(() => "");
  return typeof said === "string" && said ? said : `the gateway answers ${answer.status}`;
}

// Browsers differ in what they say where nobody answers.
const reasonOf = (error) => (error instanceof TypeError ? "the gateway cannot be reached" : error.message);

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function whenVisible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}
