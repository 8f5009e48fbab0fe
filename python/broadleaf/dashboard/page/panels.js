// The smaller panels: totals, errors, progress, functions, hosts, deaths, log.

import { bar, bytes, clock, colourOf, count, duration, h, rate } from "./format.js";

const MAX_LINES = 500;

function table(titles, rows, empty) {
  if (!rows.length) return h("div", { class: "empty" }, empty);
  const head = titles.map(([title, isLeft]) => h("th", { class: isLeft ? "left" : null }, title));
  return h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows));
}

export function showTiles(element, cluster, point) {
  const resolved = cluster.resolved;
  const bad = resolved.error + resolved.lost;
  const tiles = [
    ["engines up", `${count(cluster.up)} / ${count(cluster.engines)}`, cluster.up < cluster.engines],
    ["engines busy", point[4] === null ? "–" : `${Math.round(point[4])} %`],
    ["tasks per second", rate(point[1])],
    ["running", count(cluster.running)],
    ["waiting", count(cluster.waiting)],
    ["tasks done", count(resolved.ok)],
    ["failed or lost", count(bad), bad > 0],
    ["received", point[3] === null ? "–" : `${bytes(point[3])}/s`],
    ["shared memory", bytes(cluster.segment_bytes)],
  ];
  element.replaceChildren(...tiles.map(([label, value, isBad]) => h("div", { class: isBad ? "tile bad" : "tile" }, h("b", {}, value), h("small", {}, label))));
}

export function showFunctions(element, functions) {
  const all = functions.reduce((sum, f) => sum + f.total_ns, 0) || 1;
  const rows = functions.map((f) => {
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = colourOf(f.name);
    return h("tr", {},
      h("td", { class: "left", title: f.name }, swatch, f.name || "(no name)"),
      h("td", {}, ...bar(100 * f.total_ns / all, duration(f.total_ns / 1e9))),
      h("td", {}, count(f.tasks)),
      h("td", {}, duration(f.total_ns / 1e9 / f.tasks)),
      h("td", {}, duration(f.max_ns / 1e9)),
      h("td", { class: f.errors ? "down" : null }, f.errors ? count(f.errors) : ""));
  });
  const titles = [["function", true], ["time"], ["tasks"], ["mean"], ["longest"], ["failed"]];
  element.replaceChildren(table(titles, rows, "No task has ended yet."));
}

// Each kind of error is a row that opens: what was raised where, for which item, and the traceback.
export class Errors {
  constructor(element, note) {
    Object.assign(this, { element, note, open: new Set() });
  }

  show(errors) {
    this.element.closest("section").hidden = !errors.length;
    const total = errors.reduce((sum, error) => sum + error.items, 0);
    this.note.textContent = errors.length ? `${count(total)} of ${count(errors.length)} ${errors.length === 1 ? "kind" : "kinds"}` : "";
    // What is being read stays as it is.
    const focused = document.activeElement?.dataset?.key;
    const scrolled = this.element.scrollTop;
    this.element.replaceChildren(...errors.map((error) => this.row(error)));
    this.element.scrollTop = scrolled;
    if (focused) this.element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  row(error) {
    const place = error.file ? `${error.file.split("/").pop()}:${error.line}` : "";
    const summary = h("summary", { "data-key": error.key },
      h("span", { class: "many" }, `${count(error.items)} ×`),
      h("span", { class: "what" }, h("b", {}, error.ename), error.evalue ? `: ${error.evalue.split("\n")[0]}` : ""),
      h("span", { class: "faint where" }, `${error.function || "a task"}${place ? `, ${place}` : ""}`));
    const facts = [
      error.item ? `first for ${error.item_index === null ? "" : `item ${count(error.item_index)} of its chunk, `}${error.item}` : "",
      `last on engine ${error.engine}, ${error.ago_s ? `${duration(error.ago_s)} ago` : "just now"}`,
      error.items !== error.tasks ? `in ${count(error.tasks)} ${error.tasks === 1 ? "task" : "tasks"}` : "",
    ].filter(Boolean).join(" · ");
    const details = h("details", { class: "error", open: this.open.has(error.key) }, summary,
      h("p", { class: "faint" }, facts),
      error.source ? h("p", {}, h("code", {}, error.source), h("span", { class: "faint" }, ` ${error.file}, line ${error.line}`)) : null,
      error.traceback ? h("pre", { tabindex: "0" }, error.traceback) : null);
    details.addEventListener("toggle", () => { if (details.open) this.open.add(error.key); else this.open.delete(error.key); });
    return details;
  }
}

export function showProgress(element, progress) {
  element.closest("section").hidden = !progress.length;
  const rows = progress.map((p) => h("tr", {},
    h("td", { class: "left", title: p.name }, p.name || "(no name)"),
    h("td", {}, ...bar(100 * p.done / p.total, `${count(p.done)} of ${count(p.total)}`)),
    h("td", {}, p.per_s === null ? "–" : `${rate(p.per_s)}/s`),
    h("td", {}, p.left_s === null ? "–" : duration(p.left_s)),
    h("td", { class: p.failed ? "down" : null }, p.failed ? count(p.failed) : "")));
  const titles = [["function", true], ["tasks done"], ["rate"], ["time left"], ["failed"]];
  element.replaceChildren(table(titles, rows, ""));
}

export function showHosts(element, hosts) {
  const rows = hosts.map((host) => h("tr", {},
    h("td", { class: "left", title: host.name }, host.name),
    h("td", { class: host.up < host.engines ? "down" : null }, `${count(host.up ?? 0)} of ${count(host.engines ?? 0)}`),
    h("td", {}, ...bar(host.busy_percent ?? 0, `${host.busy_percent ?? 0} %`)),
    h("td", {}, bytes(host.memory_bytes)),
    h("td", {}, host.round_trip_us ? duration(host.round_trip_us / 1e6) : "–"),
    h("td", {}, host.bytes_per_s ? `${bytes(host.bytes_per_s)}/s` : "–")));
  const titles = [["host", true], ["engines up"], ["busy"], ["memory"], ["round trip"], ["bandwidth"]];
  element.replaceChildren(table(titles, rows, "No engine has come up yet."));
}

export function showDeaths(element, note, alert, deaths) {
  const sudden = deaths.filter((death) => !death.asked_for);
  note.textContent = deaths.length ? count(deaths.length) : "";
  const sentence = (death) => `Engine ${death.engine} (pid ${death.pid}${death.host ? ` on ${death.host}` : ""}) ${death.reason}, ${duration(death.ago_s)} ago${death.state === "up" ? "; it was started again" : ""}.`;
  element.replaceChildren(...(deaths.length ? deaths.map((death) => h("div", { class: "death" }, sentence(death),
    death.last_output.trim() ? h("pre", {}, death.last_output.trim().split("\n").slice(-10).join("\n")) : null))
    : [h("div", { class: "empty" }, "No engine has died.")]));
  const down = sudden.filter((death) => death.state !== "up");
  alert.hidden = !down.length;
  if (down.length) alert.textContent = down.length === 1 ? sentence(down[0]) : `${count(down.length)} engines have died and are not up. The latest: ${sentence(down[0])}`;
}

export class Log {
  constructor(element) {
    this.element = element;
  }

  clear() {
    this.element.replaceChildren();
  }

  add(lines) {
    if (!lines.length) {
      if (!this.element.childElementCount) this.element.append(h("div", { class: "empty" }, "Nothing has been logged yet."));
      return;
    }
    this.element.querySelector(".empty")?.remove();
    const box = this.element;
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
    box.append(...lines.map(([at, text]) => h("pre", { class: at === null ? "node" : "note" }, at === null ? text : `${clock(at)} ${text}`)));
    while (box.childElementCount > MAX_LINES) box.firstChild.remove();
    if (atEnd) box.scrollTop = box.scrollHeight;
  }
}
