// Engines: a field of squares where they are many, and a table of which only the rows in view exist.

import { bar, bytes, count, css, duration, h, link, refill } from "./format.js";

const ROW_PX = 25;
const GRID_FROM = 33;
// Title, column of a look, whether it is text, and whether a narrow window leaves it to the engine's panel.
const COLUMNS = [
  ["engine", "id", true], ["state", "state", true], ["task", "task", true], ["busy", "busy_percent"], ["queued", "outstanding", false, true],
  ["done", "completed"], ["mean", "mean_us", false, true], ["memory", "memory_bytes", false, true], ["restarts", "restarts", false, true],
  ["host", "host", true, true], ["pid", "pid", false, true],
];
const classOf = (isLeft, isExtra, more = "") => [isLeft ? "left" : "", isExtra ? "extra" : "", more].filter(Boolean).join(" ") || null;
const STATE_CLASS = { up: "up", gone: "down", dying: "down" };

export class Engines {
  constructor(element, canvas, note, filter, tip, open) {
    Object.assign(this, { element, canvas, note, filter, tip, open, columns: null, order: [], sortBy: "id", descending: false });
    this.head = h("tr");
    this.body = h("tbody");
    this.above = h("div");
    this.below = h("div");
    element.append(h("table", {}, h("thead", {}, this.head)));
    this.table = element.firstChild;
    this.table.append(this.body);
    element.append(this.below);
    for (const [label, name, isLeft, isExtra] of COLUMNS) {
      const button = h("button", { type: "button", onclick: () => this.sort(name) }, label);
      this.head.append(h("th", { scope: "col", class: classOf(isLeft, isExtra), "data-name": name }, button));
    }
    element.addEventListener("scroll", () => this.showRows());
    filter.addEventListener("input", () => this.show());
    canvas.addEventListener("mousemove", (event) => this.showTip(event));
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", (event) => this.choose(event));
    new ResizeObserver(() => { if (this.columns) this.drawGrid(); }).observe(canvas.parentElement);
  }

  sort(name) {
    this.descending = this.sortBy === name ? !this.descending : !["id", "state", "task", "host"].includes(name);
    this.sortBy = name;
    this.show();
  }

  look(columns) {
    this.columns = columns;
    this.show();
  }

  show() {
    const c = this.columns;
    if (!c) return;
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (i) => words.every((w) => String(c.id[i]) === w || c.state[i].includes(w) || c.host[i].toLowerCase().includes(w) || (c.task[i] ?? "").toLowerCase().includes(w));
    this.order = c.id.map((_, i) => i).filter(matches);
    const by = c[this.sortBy];
    const sign = this.descending ? -1 : 1;
    this.order.sort((a, b) => {
      const [x, y] = [by[a], by[b]];
      if (x === y) return a - b;
      if (x === null) return 1;
      if (y === null) return -1;
      return x < y ? -sign : sign;
    });
    for (const th of this.head.children) th.setAttribute("aria-sort", th.dataset.name !== this.sortBy ? "none" : this.descending ? "descending" : "ascending");
    const states = new Map();
    for (const state of c.state) states.set(state, (states.get(state) ?? 0) + 1);
    const parts = [...states].sort((a, b) => b[1] - a[1]).map(([state, n]) => `${count(n)} ${state}`);
    const filtered = words.length ? `, ${count(this.order.length)} shown` : "";
    this.note.textContent = parts.join(", ") + filtered;
    this.showRows();
    this.drawGrid();
  }

  showRows() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW_PX) - 5);
    const last = Math.min(this.order.length, first + Math.ceil(this.element.clientHeight / ROW_PX) + 12);
    const spacer = h("tr");
    spacer.style.height = `${first * ROW_PX}px`;
    this.table.setAttribute("aria-rowcount", String(this.order.length + 1));
    refill(this.body, ...(first ? [spacer] : []), ...this.order.slice(first, last).map((i, n) => this.row(i, first + n + 2)));
    this.below.style.height = `${(this.order.length - last) * ROW_PX}px`;
  }

  row(i, number) {
    const c = this.columns;
    const time = c.for_ms[i] ? ` (${duration(c.for_ms[i] / 1000)})` : "";
    const task = c.task[i] === null ? "" : `${c.task[i] || "task"}${time}`;
    const up = c.state[i] === "up";
    const id = c.id[i];
    const cells = [
      [link(`engine ${id}`, String(id), null, { "aria-label": `Engine ${id}` })], [up ? (c.task[i] === null ? "idle" : "busy") : c.state[i]],
      [task], bar(c.busy_percent[i], `${c.busy_percent[i]} %`), [count(c.outstanding[i] + c.queued[i])],
      [count(c.completed[i])], [c.mean_us[i] ? duration(c.mean_us[i] / 1e6) : "–"], [bytes(c.memory_bytes[i])],
      [c.restarts[i] ? count(c.restarts[i]) : ""], [c.host[i]], [up ? String(c.pid[i]) : ""],
    ];
    return h("tr", { "aria-rowindex": number, onclick: () => this.open(id) }, ...COLUMNS.map(([label, , isLeft, isExtra], column) => {
      const title = label === "task" || label === "host" ? cells[column][0] : null;
      return h("td", { class: classOf(isLeft, isExtra, label === "state" ? STATE_CLASS[c.state[i]] ?? "pending" : ""), title }, ...cells[column]);
    }));
  }

  // Each engine a square: its state by colour, how busy it is by how dark it is.
  drawGrid() {
    const c = this.columns;
    const n = c.id.length;
    this.canvas.hidden = n < GRID_FROM;
    if (this.canvas.hidden) return;
    const width = this.canvas.parentElement.clientWidth - 24;
    const size = n > 600 ? 12 : n > 200 ? 16 : 20;
    this.across = Math.max(1, Math.floor(width / size));
    const height = Math.ceil(n / this.across) * size;
    const scale = devicePixelRatio || 1;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.cell = size;
    const ctx = this.canvas.getContext("2d");
    ctx.scale(scale, scale);
    const [idle, busy, bad, warn] = ["--idle", "--busy", "--bad", "--warn"].map(css);
    const chosen = new Set(this.order);
    for (let i = 0; i < n; i += 1) {
      const [x, y] = [(i % this.across) * size, Math.floor(i / this.across) * size];
      const box = (colour, alpha) => {
        ctx.globalAlpha = alpha * (chosen.has(i) ? 1 : 0.25);
        ctx.fillStyle = colour;
        ctx.fillRect(x, y, size - 2, size - 2);
      };
      if (c.state[i] === "up") {
        box(idle, 1);
        const share = c.task[i] === null ? c.busy_percent[i] : Math.max(30, c.busy_percent[i]);
        if (share > 0) box(busy, 0.15 + 0.85 * share / 100);
      } else box(STATE_CLASS[c.state[i]] === "down" ? bad : warn, 1);
    }
  }

  at(event) {
    const rect = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - rect.left) / this.cell);
    const i = Math.floor((event.clientY - rect.top) / this.cell) * this.across + column;
    return column < this.across && i < this.columns.id.length ? i : null;
  }

  showTip(event) {
    const i = this.at(event);
    this.tip.hidden = i === null;
    if (i === null) return;
    const c = this.columns;
    const memory = c.memory_bytes[i] === null ? "" : `\n${bytes(c.memory_bytes[i])}`;
    this.tip.textContent = `engine ${c.id[i]}: ${c.state[i]}${c.task[i] === null ? "" : `, runs ${c.task[i] || "a task"}`}\n${c.busy_percent[i]} % busy, ${count(c.completed[i])} tasks done${memory}\n${c.host[i]}`;
    this.tip.style.left = `${Math.min(event.clientX + 12, innerWidth - this.tip.offsetWidth - 8)}px`;
    this.tip.style.top = `${event.clientY + 14}px`;
  }

  choose(event) {
    const i = this.at(event);
    if (i === null) return;
    this.open(this.columns.id[i]);
  }
}
