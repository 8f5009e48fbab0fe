// The panel of one engine or one task, beside the others.

import { bytes, clock, count, duration, h, link, plain, refill } from "./format.js";
import { append, lastWords, obituary, table } from "./panels.js";

const N_TASKS = 50;
const MAX_CHARACTERS = 2000;
const START_IS_KNOWN_TO_MS = 200;

export class Detail {
  // `ask` gets what an engine has written, `tasksOf` the tasks that it has ended, and `revealError` opens an error's row.
  constructor(dialog, title, body, close, { ask, tasksOf, revealError }) {
    Object.assign(this, { dialog, title, body, ask, tasksOf, revealError, shown: null, latest: null, isPaused: false });
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      dialog.close();
    });
    dialog.addEventListener("close", () => this.onClose());
  }

  openEngine(id) {
    this.sections = Object.fromEntries(["facts", "death", "errors", "trouble", "output", "log", "tasks"].map((name) => [name, h("div")]));
    this.written = { pid: null, output: 0, log: 0, rest: "" };
    this.open({ engine: id }, `Engine ${id}`, ...Object.values(this.sections));
    this.read();
  }

  openTask(task) {
    this.open({ task }, task.name || "Task", h("div"));
  }

  open(shown, title, ...sections) {
    if (!this.dialog.open) this.opener = document.activeElement?.dataset?.key ?? document.activeElement?.id;
    this.shown = shown;
    this.title.textContent = title;
    this.body.replaceChildren(...sections);
    this.body.scrollTop = 0;
    if (!this.dialog.open) this.dialog.show();
    this.show();
    this.title.focus();
  }

  onClose() {
    this.shown = null;
    const key = this.opener && CSS.escape(this.opener);
    if (key) document.querySelector(`[data-key="${key}"], #${key}`)?.focus({ preventScroll: true });
  }

  look(latest) {
    this.latest = latest;
    if (this.shown) this.show();
    if (this.shown?.engine !== undefined) this.read();
  }

  show() {
    if (!this.latest) return;
    if (this.shown.task) this.showTask(this.shown.task);
    else this.showEngine(this.shown.engine);
  }

  showEngine(id) {
    const columns = this.latest.engines;
    const i = columns.id.indexOf(id);
    const c = (name) => (i < 0 ? null : columns[name][i]);
    const { facts, death, errors, tasks } = this.sections;
    const runs = c("task") === null ? "" : `${c("task") || "a task"}${c("for_ms") ? `, for ${duration(c("for_ms") / 1000)}` : ""}`;
    refill(facts, i < 0 ? h("p", {}, "This engine is no longer part of the cluster.") : factList([
      ["state", c("state") === "up" ? (runs ? "busy" : "idle") : c("state")], ["runs", runs], ["host", c("host")], ["process", c("state") === "up" ? c("pid") : ""],
      ["busy", `${c("busy_percent")} % of its time`], ["queued", count(c("outstanding") + c("queued"))], ["done", count(c("completed"))],
      ["mean task", c("mean_us") ? duration(c("mean_us") / 1e6) : ""], ["memory", c("memory_bytes") === null ? "" : bytes(c("memory_bytes"))],
      ["restarts", c("restarts") ? count(c("restarts")) : ""],
    ]));
    const certificate = this.latest.deaths.find((other) => other.engine === id);
    refill(death, ...(certificate ? [h("h3", {}, certificate.state === "up" ? "Death before its last start" : "Death certificate"),
      h("p", { class: certificate.asked_for ? null : "down" }, `${obituary(certificate)}, ${duration(certificate.ago_s)} ago.`),
      certificate.state === "up" || certificate.asked_for ? null : h("p", { class: "faint" }, certificate.advice), lastWords(certificate, 40)].filter(Boolean) : []));
    const raised = this.latest.errors.filter((error) => error.engine === id);
    refill(errors, ...(raised.length ? [h("h3", {}, "Errors it raised last"), ...raised.map((error) => this.errorLine(error))] : []));
    const ended = this.tasksOf(id);
    const newest = ended.slice(-N_TASKS).reverse();
    refill(tasks, ...(newest.length ? [h("h3", {}, newest.length < ended.length ? `Its last ${count(N_TASKS)} tasks` : "Its tasks"), table([["task", true], ["started"], ["took"], [""]],
      newest.map((task) => h("tr", {}, h("td", { class: "left" }, link(`task ${id} ${task.startMs}`, task.name || "task", () => this.openTask(task))),
        h("td", {}, clock(task.startMs, 3)), h("td", {}, duration(task.seconds)), h("td", { class: "down" }, task.failed ? "failed" : ""))))] : []));
  }

  showTask(shown) {
    const ended = this.tasksOf(shown.engine);
    const task = shown.runs ? this.nowOf(shown, ended) : shown;
    this.shown.task = task;
    const isOver = !task.runs;
    const before = ended.findLast((other) => other.startMs < task.startMs - 1e-6);
    const gapS = before ? (task.startMs - before.startMs) / 1000 - before.seconds : null;
    const like = ended.filter((other) => other.name === task.name).map((other) => other.seconds).sort((a, b) => a - b);
    const errors = task.failed ? this.latest.errors.filter((error) => error.function === task.name) : [];
    refill(this.body.firstChild, factList([
      ["engine", link(`to engine ${task.engine}`, `engine ${task.engine}`, () => this.openEngine(task.engine))],
      ["outcome", isOver ? (task.failed ? h("span", { class: "down" }, "failed") : "returned") : "still runs"],
      ["received", Number.isFinite(task.received) ? `${clock(task.startMs - task.received, 6)}, by the controller` : ""],
      ["sent", Number.isFinite(task.sent) ? `${clock(task.startMs - task.sent, 6)}, to the engine` : ""],
      ["started", clock(task.startMs, 6)], ["ended", isOver ? clock(task.startMs + task.seconds * 1000, 6) : ""],
      [isOver ? "took" : "for", duration(task.seconds)],
      ["arguments", Number.isFinite(task.in) ? bytes(task.in) : ""], [task.failed ? "error record" : "value", Number.isFinite(task.out) ? bytes(task.out) : ""],
      ["before it", gapS === null ? "" : gapS > 0 ? `its engine was idle for ${duration(gapS)}` : "its engine was busy"],
      ["typical", like.length > 1 ? `${duration(like[Math.floor(like.length / 2)])}, the median of ${count(like.length)} such tasks on this engine` : ""],
    ]), ...(errors.length ? [h("h3", {}, errors.length > 1 ? "What this function raised" : "What it raised"), ...errors.map((error) => this.errorLine(error))] : []));
  }

  // A task that ran when it was clicked: as it ended, if it has, or for how long it runs now. Of a running task the time
  // of its start is known less exactly.
  nowOf(task, ended) {
    const over = ended.find((other) => other.name === task.name && Math.abs(other.startMs - task.startMs) < START_IS_KNOWN_TO_MS);
    return over ?? { ...task, seconds: Math.max(task.seconds, (this.latest.at - task.startMs) / 1000) };
  }

  errorLine(error) {
    const what = `${error.ename}${error.evalue ? `: ${error.evalue.split("\n")[0]}` : ""}`;
    return h("p", {}, link(`detail ${error.key}`, what, () => { this.dialog.close(); this.revealError(error.key); }), h("span", { class: "faint" }, ` ${count(error.items)} × in ${error.function || "a task"}`));
  }

  // What the engine has written since the last time.
  async read() {
    const { shown, written } = this;
    if (this.isPaused || this.reading === shown) return;
    this.reading = shown;
    try {
      const told = await this.ask(shown.engine, written);
      if (this.shown !== shown) return;
      const words = told.failed ? [h("p", { class: "down", role: "status" }, `Its output and log are not available: ${told.failed}`)] : [];
      refill(this.sections.trouble, ...words);
      if (!told.failed) this.showWritten(told);
    } finally {
      if (this.reading === shown) this.reading = null;
    }
  }

  showWritten(told) {
    const { written, sections: { output, log } } = this;
    if (told.is_new) {
      for (const section of [output, log]) section.replaceChildren();
      written.rest = "";
    }
    written.pid = told.pid;
    written.output = told.output?.end ?? written.output;
    written.log = told.log?.end ?? written.log;
    const box = (section, title) => {
      if (!section.firstChild) section.append(h("h3", {}, title), h("div", { class: "log", tabindex: "0", role: "region", "aria-label": title }));
      return section.lastChild;
    };
    if (told.output?.text) {
      const lines = (written.rest + told.output.text).split("\n");
      // The last line goes on with what comes next, such as a progress bar that is written over.
      if (written.rest) box(output, "Output").lastChild.remove();
      written.rest = lines.pop().slice(-MAX_CHARACTERS);
      const missing = told.output.missing_bytes ? [h("pre", { class: "note" }, `(${bytes(told.output.missing_bytes)} before this are not shown)`)] : [];
      append(box(output, "Output"), ...missing, ...[...lines, ...(written.rest ? [written.rest] : [])].map((line) => h("pre", {}, plain(line))));
    }
    if (told.log?.lines.length) append(box(log, "Log"), ...told.log.lines.map((line) => h("pre", {}, plain(line))));
    if (told.is_new && !told.output && !told.log) output.append(h("p", { class: "faint" }, "Neither its output nor its log can be read."));
  }
}

function factList(facts) {
  const rows = facts.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return h("dl", {}, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
