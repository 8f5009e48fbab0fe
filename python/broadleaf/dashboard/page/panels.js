// The smaller panels: totals, errors, progress, functions, hosts, deaths, log.

import { bar, bytes, clock, colourOf, count, duration, h, link, rate, refill } from "./format.js";

const MAX_LINES = 500;

// Shows a table in a panel, which is hidden while there is nothing in it.
function showTable(element, titles, rows) {
  element.closest("section").hidden = !rows.length;
  refill(element, table(titles, rows));
}

export function table(titles, rows) {
  const head = titles.map(([title, isLeft, isExtra]) => h("th", { scope: "col", class: isLeft ? "left" : isExtra ? "extra" : null }, title));
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
      h("td", { class: "extra" }, duration(f.max_ns / 1e9)),
      h("td", { class: f.errors ? "down" : null }, f.errors ? count(f.errors) : ""));
  });
  const titles = [["function", true], ["time"], ["tasks"], ["mean"], ["longest", false, true], ["failed"]];
  showTable(element, titles, rows);
}

// Each kind of error is a row that opens: what was raised where, for which item, and the traceback.
export class Errors {
  constructor(element, note, openEngine) {
    Object.assign(this, { element, note, openEngine, open: new Set() });
  }

  // Opens one of them, and goes there.
  reveal(key) {
    const summary = this.element.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (!summary) return;
    summary.parentElement.open = true;
    summary.focus();
    summary.parentElement.scrollIntoView({ block: "nearest" });
  }

  show(errors) {
    this.element.closest("section").hidden = !errors.length;
    const total = errors.reduce((sum, error) => sum + error.items, 0);
    this.note.textContent = errors.length ? `${count(total)} of ${count(errors.length)} ${errors.length === 1 ? "kind" : "kinds"}` : "";
    refill(this.element, ...errors.map((error) => this.row(error)));
  }

  row(error) {
    const place = error.file ? `${error.file.split("/").pop()}:${error.line}` : "";
    const summary = h("summary", { "data-key": error.key },
      h("span", { class: "many" }, `${count(error.items)} ×`),
      h("span", { class: "what" }, h("b", {}, error.ename), error.evalue ? `: ${error.evalue.split("\n")[0]}` : ""),
      h("span", { class: "faint where" }, `${error.function || "a task"}${place ? `, ${place}` : ""}`));
    const before = [
      error.item ? `first for ${error.item_index === null ? "" : `item ${count(error.item_index)} of its chunk, `}${error.item}` : "",
      "last on ",
    ].filter(Boolean).join(" · ");
    const after = [
      `, ${error.ago_s ? `${duration(error.ago_s)} ago` : "just now"}`,
      error.items !== error.tasks ? `in ${count(error.tasks)} ${error.tasks === 1 ? "task" : "tasks"}` : "",
    ].filter(Boolean).join(" · ");
    const details = h("details", { class: "error", open: this.open.has(error.key) }, summary,
      h("p", { class: "faint" }, before, link(`${error.key} engine`, `engine ${error.engine}`, () => this.openEngine(error.engine)), after),
      error.source ? h("p", {}, h("code", {}, error.source), h("span", { class: "faint" }, ` ${error.file}, line ${error.line}`)) : null,
      error.traceback ? h("pre", { tabindex: "0" }, error.traceback) : null);
    details.addEventListener("toggle", () => { if (details.open) this.open.add(error.key); else this.open.delete(error.key); });
    return details;
  }
}

export function showProgress(element, progress) {
  const rows = progress.map((p) => h("tr", {},
    h("td", { class: "left", title: p.name }, p.name || "(no name)"),
    h("td", {}, ...bar(100 * p.done / p.total, `${count(p.done)} of ${count(p.total)}`)),
    h("td", {}, p.per_s === null ? "–" : `${rate(p.per_s)}/s`),
    h("td", {}, p.left_s === null ? "–" : duration(p.left_s)),
    h("td", { class: p.failed ? "down" : null }, p.failed ? count(p.failed) : "")));
  const titles = [["function", true], ["tasks done"], ["rate"], ["time left"], ["failed"]];
  showTable(element, titles, rows);
}

export function showHosts(element, hosts) {
  const perS = (n) => (n ? `${bytes(n)}/s` : n === 0 ? "0" : null);
  // Title, cell (null where it is not known), and whether a narrow window has no room for it.
  const columns = [
    ["engines up", (host) => `${count(host.up ?? 0)} of ${count(host.engines ?? 0)}`],
    ["busy", (host) => bar(host.busy_percent ?? 0, `${host.busy_percent ?? 0} %`)],
    ["processor", (host) => host.cpu_percent === null || host.cpu_percent === undefined ? null : `${host.cpu_percent} % of ${count(host.cores)} ${host.cores === 1 ? "core" : "cores"}`],
    ["engines' memory", (host) => host.memory_bytes ? bytes(host.memory_bytes) : null, true],
    ["free memory", (host) => host.free_bytes ? bytes(host.free_bytes) : null],
    ["in", (host) => perS(host.in_bytes_per_s), true],
    ["out", (host) => perS(host.out_bytes_per_s), true],
    ["round trip", (host) => host.round_trip_us ? duration(host.round_trip_us / 1e6) : null, true],
    ["bandwidth", (host) => perS(host.bytes_per_s || null), true],
  ].filter(([, cell]) => hosts.some((host) => cell(host) !== null));
  const rows = hosts.map((host) => h("tr", {}, h("td", { class: "left", title: host.name }, host.name),
    ...columns.map(([title, cell, isExtra]) => h("td", { class: isExtra ? "extra" : title === "engines up" && host.up < host.engines ? "down" : null }, ...[cell(host) ?? "–"].flat()))));
  showTable(element, [["host", true], ...columns.map(([title, , isExtra]) => [title, false, isExtra])], rows);
}

// How an engine died.
export const obituary = (death) => `Engine ${death.engine} (pid ${death.pid}${death.host ? ` on ${death.host}` : ""}) ${death.reason}`;
export const lastWords = (death, n) => (death.last_output.trim() ? h("pre", {}, death.last_output.trim().split("\n").slice(-n).join("\n")) : null);

export function showDeaths(element, note, alert, deaths, openEngine) {
  element.closest("section").hidden = !deaths.length;
  note.textContent = deaths.length ? count(deaths.length) : "";
  refill(element, ...deaths.map((death) => h("div", { class: "death" },
    link(`death of ${death.engine} ${death.pid}`, `Engine ${death.engine}`, () => openEngine(death.engine)),
    `${obituary(death).slice(`Engine ${death.engine}`.length)}, ${duration(death.ago_s)} ago${death.state === "up" ? "; it was started again" : ""}.`,
    lastWords(death, 10))));
  const down = deaths.filter((death) => !death.asked_for && death.state !== "up");
  alert.hidden = !down.length;
  // It is read aloud when it changes, so it does not say how long ago.
  const latest = down.length ? `${obituary(down[0])}.` : "";
  const text = down.length > 1 ? `${count(down.length)} engines have died and are not up. The latest: ${latest}` : latest;
  if (alert.textContent !== text) alert.textContent = text;
}

export class Log {
  constructor(element) {
    this.element = element;
  }

  clear() {
    this.element.replaceChildren();
    this.element.closest("section").hidden = true;
  }

  add(lines) {
    if (!lines.length) return;
    const box = this.element;
    box.closest("section").hidden = false;
    append(box, ...lines.map(([at, text]) => h("pre", { class: at === null ? "node" : "note" }, at === null ? text : `${clock(at)} ${text}`)));
  }
}

// Adds lines to a log, of which the newest stay in view unless it was scrolled up.
export function append(box, ...lines) {
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
  box.append(...lines);
  while (box.childElementCount > MAX_LINES) box.firstChild.remove();
  if (atEnd) box.scrollTop = box.scrollHeight;
}
