// Open batches, then those that ended last; one that is at work can be cancelled.

import { problemOf } from "./connection.js";
import { byId, element, KeyedList, row, setAttribute, setText } from "./dom.js";
import { clock, count, duration, figure, UNKNOWN } from "./format.js";

const LABELS = ["Batch", "Status", "Lines done", "Failed", "Lines/s", "Left", ""];
const CLASSES = ["name", "", "wide", "number", "number", "number", "action"];
const CANCELLABLE = ["validating", "in_progress"];
const GOOD = "completed";
const BAD = ["failed", "expired"];

export class Batches {
  #table = byId("batches");
  #rows;

  constructor(keys) {
    const cancelling = new CancelDialog(keys);
    this.#rows = new KeyedList(this.#table.tBodies[0], (batch) => createRow(batch, cancelling));
  }

  show(now) {
    const all = [...now.batches, ...now.ended];
    this.#table.hidden = all.length === 0;
    byId("no-batches").hidden = all.length > 0;
    this.#rows.show(all, (batch) => batch.id);
  }
}

function createRow(batch, cancelling) {
  const { node, cells } = row(LABELS, CLASSES);
  const [name, status, progress, failed, rate, left, action] = cells;
  name.append(element("code", "", batch.id), element("small", "", `${batch.endpoint}, since ${clock(batch.created_at)}`));
  const [bar, done] = [element("progress"), element("small", "figures")];
  progress.append(bar, done);
  const button = element("button", "quiet", "Cancel");
  button.type = "button";
  button.setAttribute("aria-label", `Cancel ${batch.id}`);
  action.append(button);
  let newest = batch;
  button.addEventListener("click", () => cancelling.open(newest));
  const update = (fresh) => {
    newest = fresh;
    node.classList.toggle("ended", fresh.ended_at !== null);
    setText(status, fresh.status.replace("_", " "));
    setAttribute(status, "class", fresh.status === GOOD ? "good" : BAD.includes(fresh.status) ? "bad" : "");
    bar.max = fresh.total || 1;
    bar.value = fresh.done;
    setAttribute(bar, "aria-label", `${count(fresh.done)} of ${count(fresh.total)} lines`);
    const unknown = fresh.ended_at === null ? "not counted yet" : "none has run";
    setText(done, fresh.total ? `${count(fresh.done)} of ${count(fresh.total)}` : unknown);
    setText(failed, count(fresh.failed));
    failed.classList.toggle("bad", fresh.failed > 0);
    setText(rate, figure(fresh.lines_per_s));
    setText(left, leftOf(fresh));
    button.hidden = !CANCELLABLE.includes(fresh.status);
  };
  return { node, update };
}

function leftOf(batch) {
  if (batch.ended_at !== null) return `ended ${clock(batch.ended_at)}`;
  return batch.left_s === null ? UNKNOWN : `about ${duration(batch.left_s)}`;
}

class CancelDialog {
  #dialog = byId("cancel-dialog");
  #problem = byId("cancel-problem");
  #confirm = byId("cancel-confirm");
  #keys;
  #batchId = "";

  constructor(keys) {
    this.#keys = keys;
    byId("cancel-keep").addEventListener("click", () => this.#dialog.close());
    byId("cancel-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#cancel();
    });
  }

  open(batch) {
    this.#batchId = batch.id;
    setText(byId("cancel-batch"), batch.id);
    const done = `${count(batch.done)} of ${count(batch.total)} lines are done and stay in its output file.`;
    setText(byId("cancel-text"), batch.total ? `${done} The others do not run any more.` : "It has not begun to run.");
    setText(this.#problem, "");
    this.#dialog.showModal();
  }

  async #cancel() {
    this.#confirm.disabled = true;
    try {
      const key = this.#keys.current();
      const headers = key ? { Authorization: `Bearer ${key}` } : {};
      const path = `v1/batches/${encodeURIComponent(this.#batchId)}/cancel`;
      const answer = await fetch(path, { method: "POST", headers });
      if (answer.ok) this.#dialog.close();
      else setText(this.#problem, await problemOf(answer));
    } catch {
      setText(this.#problem, "The gateway cannot be reached; try again.");
    } finally {
      this.#confirm.disabled = false;
    }
  }
}
