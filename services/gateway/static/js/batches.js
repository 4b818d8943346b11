// Open batches, then those that ended last; one that is at work can be cancelled.

import { byId, element, KeyedList, row, setAttribute, setText } from "./dom.js";
import { FileLink } from "./file_link.js";
import { clockAndDay, count, duration, figure, UNKNOWN } from "./format.js";
import { OrderDialog } from "./order_dialog.js";

const LABELS = ["Batch", "Status", "Lines done", "Failed", "Lines/s", "Left", ""];
const CLASSES = ["name", "", "wide", "number", "number", "number", "action"];
const CANCELLABLE = ["validating", "in_progress"];
const GOOD = "completed";
const BAD = ["failed", "expired"];

export class Batches {
  #table = byId("batches");
  #rows;

  // access: { mayChange }, as whom the page is open.
  constructor(keys, access) {
    const cancelling = new OrderDialog("cancel", keys);
    const parts = { keys, access, cancel: (batch) => askToCancel(batch, cancelling) };
    this.#rows = new KeyedList(this.#table.tBodies[0], (batch) => createRow(batch, parts));
  }

  show(now) {
    const all = [...now.batches, ...now.ended];
    this.#table.hidden = all.length === 0;
    byId("no-batches").hidden = all.length > 0;
    this.#rows.show(all, (batch) => batch.id);
  }
}

function createRow(batch, { keys, access, cancel }) {
  const { node, cells } = row(LABELS, CLASSES);
  const [name, status, progress, failed, rate, left, action] = cells;
  const { name: title, ...others } = batch.metadata ?? {};
  const whose = batch.model ? [batch.model] : [];
  const told = Object.entries(others).map((pair) => pair.join(": "));
  const about = element("small");
  const [why, results, errors] = [element("small", "why"), new FileLink("Results", keys), new FileLink("Errors", keys)];
  if (title) name.append(element("strong", "", title), " ");
  name.append(element("code", "", batch.id), about, why);
  const [bar, done] = [element("progress"), element("small", "figures")];
  progress.append(bar, done);
  const button = element("button", "quiet", "Cancel");
  button.type = "button";
  button.setAttribute("aria-label", `Cancel ${batch.id}`);
  action.append(results.node, errors.node, button);
  let newest = batch;
  button.addEventListener("click", () => cancel(newest));
  const update = (fresh) => {
    newest = fresh;
    node.classList.toggle("ended", fresh.ended_at !== null);
    setText(about, [...whose, `${fresh.endpoint}, since ${clockAndDay(fresh.created_at)}`, ...told].join("; "));
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
    setText(why, whyOf(fresh));
    why.hidden = fresh.why.length === 0;
    results.show(fresh.output_file_id);
    errors.show(fresh.error_file_id);
    button.hidden = !access.mayChange || !CANCELLABLE.includes(fresh.status);
  };
  return { node, update };
}

function leftOf(batch) {
  if (batch.ended_at !== null) return `ended ${clockAndDay(batch.ended_at)}`;
  return batch.left_s === null ? UNKNOWN : `about ${duration(batch.left_s)}`;
}

// Of an input file that was refused.
function whyOf({ why, num_errors: all }) {
  const more = all > why.length ? `; and ${count(all - why.length)} more` : "";
  return why.length ? `${why.join("; ")}${more}` : "";
}

function askToCancel(batch, dialog) {
  setText(byId("cancel-batch"), batch.id);
  const done = `${count(batch.done)} of ${count(batch.total)} lines are done and stay in its output file.`;
  setText(byId("cancel-text"), batch.total ? `${done} The others do not run any more.` : "It has not begun to run.");
  dialog.open(`v1/batches/${encodeURIComponent(batch.id)}/cancel`);
}
