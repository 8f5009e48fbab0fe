// Which engine ran what, when: a row for each engine, to be zoomed into.
/* global uPlot */

import { clock, colourOf, css, duration, h } from "./format.js";

const MAX_TASKS = 60000;
// Steps of the axis of time, in seconds: decimal below one, as clocks have them above.
const STEPS_S = [...[-7, -6, -5, -4, -3, -2, -1].flatMap((e) => [1, 2, 5].map((m) => m * 10 ** e)),
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400];
const SPANS_S = [["5 s", 5], ["30 s", 30], ["5 min", 300]];
// A press of the mouse that moves by less is a click.
const CLICK_PX = 3;
const WAY = ["received", "sent", "in", "out"];
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Timeline {
  constructor(element, note, buttons, said, tip, open) {
    Object.assign(this, { element, note, said, tip, open });
    this.spanS = 30;
    this.zoom = null;
    this.nEngines = 1;
    this.clear();
    this.make();
    new ResizeObserver(() => this.plot.setSize(this.size())).observe(element);
    this.buttons = SPANS_S.map(([label, seconds]) => {
      const button = h("button", { type: "button", onclick: () => this.follow(seconds) }, label);
      buttons.append(button);
      return [button, seconds];
    });
    this.showButtons();
    element.addEventListener("keydown", (event) => this.key(event));
  }

  clear() {
    this.epochMs = null;
    this.start = new Float64Array(MAX_TASKS);
    this.length = new Float32Array(MAX_TASKS);
    this.engine = new Uint32Array(MAX_TASKS);
    this.name = new Uint16Array(MAX_TASKS);
    this.failed = new Uint8Array(MAX_TASKS);
    // Milliseconds from receipt and sending to the start, and bytes; NaN where unknown.
    for (const fact of WAY) this[fact] = new Float64Array(MAX_TASKS);
    this.n = 0;
    this.names = [];
    this.nameIndex = new Map();
    this.nowS = 0;
    this.running = [];
    this.untold = 0;
    // The task that the keyboard is at.
    this.chosen = null;
  }

  size() {
    return { width: Math.max(200, this.element.clientWidth), height: this.element.clientHeight };
  }

  make() {
    this.plot?.destroy();
    const axis = { stroke: css("--faint"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 } };
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: false },
      scales: {
        x: { time: false, range: () => this.zoom?.x ?? [this.nowS - this.spanS, this.nowS] },
        y: { dir: -1, range: () => this.zoom?.y ?? [-0.5, this.nEngines - 0.5] },
      },
      axes: [
        { ...axis, values: (_, splits, __, ___, step) => splits.map((s) => this.tick(s, step)), space: 90, size: 30, incrs: STEPS_S },
        { ...axis, size: 60, label: "engine", labelSize: 18, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      cursor: { drag: { x: true, y: true, uni: 24, setScale: false }, points: { show: false } },
      hooks: {
        draw: [() => this.draw()],
        setCursor: [() => this.showTip()],
        setSelect: [(u) => this.select(u)],
      },
    }, [[0, 1], [0, 0]], this.element);
    const over = this.plot.over;
    over.addEventListener("dblclick", () => this.follow(this.spanS));
    over.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    let pressed = null;
    over.addEventListener("mousedown", (event) => { pressed = event; });
    over.addEventListener("click", (event) => {
      const isClick = pressed && Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) < CLICK_PX;
      const task = isClick ? this.taskAtCursor() : null;
      if (task) this.open(task);
    });
    over.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  follow(seconds) {
    this.spanS = seconds;
    this.zoom = null;
    this.chosen = null;
    this.showButtons();
    this.redraw();
  }

  showButtons() {
    for (const [button, seconds] of this.buttons) button.setAttribute("aria-pressed", String(!this.zoom && seconds === this.spanS));
  }

  range() {
    const { x, y } = this.plot.scales;
    return { x: [x.min, x.max], y: [y.min, y.max] };
  }

  select(u) {
    const { left, top, width, height } = u.select;
    if (width < 3 && height < 3) return;
    const range = this.range();
    if (width < u.over.clientWidth) range.x = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    if (height < u.over.clientHeight) range.y = [u.posToVal(top, "y"), u.posToVal(top + height, "y")].sort((a, b) => a - b);
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoom = range;
    this.showButtons();
    this.redraw();
  }

  wheel(event) {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const at = this.plot.posToVal(event.clientX - this.plot.over.getBoundingClientRect().left, "x");
    this.zoomBy(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, at);
  }

  zoomBy(factor, at) {
    const range = this.range();
    this.zoom = { ...range, x: range.x.map((x) => at + (x - at) * factor) };
    this.showButtons();
    this.redraw();
  }

  // Zooms with the chosen task in the middle.
  zoomAround(factor) {
    const { x: [x0, x1], y } = this.range();
    const middle = this.chosen ? this.chosen.start + this.chosen.seconds / 2 : (x0 + x1) / 2;
    const half = (x1 - x0) * factor / 2;
    this.zoom = { x: [middle - half, middle + half], y };
    this.showButtons();
    this.redraw();
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const step = STEPS[event.key];
    if (step) this.move(...step);
    else if (event.key === "+" || event.key === "=") this.zoomAround(0.5);
    else if (event.key === "-") this.zoomAround(2);
    else if (event.key === "Escape" && (this.zoom || this.chosen)) this.follow(this.spanS);
    else if (event.key === "Enter" && this.chosen) this.open(this.chosen);
    else return;
    event.preventDefault();
  }

  // Goes to the next or previous task of the engine, or to the task of the next engine that is nearest in time.
  move(along, across) {
    const engines = [...new Set(this.engine.subarray(0, Math.min(this.n, MAX_TASKS)))].sort((a, b) => a - b);
    if (!engines.length) return;
    let to = null;
    if (!this.chosen) to = this.tasksOf(engines[0]).at(-1);
    else if (along) {
      const tasks = this.tasksOf(this.chosen.engine);
      to = along > 0 ? tasks.find((task) => task.start > this.chosen.start) : tasks.findLast((task) => task.start < this.chosen.start);
    } else {
      const engine = across > 0 ? engines.find((id) => id > this.chosen.engine) : engines.findLast((id) => id < this.chosen.engine);
      const away = (task) => Math.abs(task.start - this.chosen.start);
      if (engine !== undefined) to = this.tasksOf(engine).reduce((best, task) => (away(task) < away(best) ? task : best));
    }
    if (!to) return;
    this.chosen = to;
    const { x: [x0, x1], y } = this.range();
    const middle = to.start + to.seconds / 2;
    // Time goes on, and what is being looked at must not leave the window.
    this.zoom = middle < x0 || middle > x1 ? { x: [middle - (x1 - x0) / 2, middle + (x1 - x0) / 2], y } : { x: [x0, x1], y };
    if (to.engine < y[0] || to.engine > y[1]) this.zoom.y = [-0.5, this.nEngines - 0.5];
    this.said.textContent = `${this.words(to).replaceAll("\n", ", ")}`;
    this.showButtons();
    this.redraw();
  }

  tick(seconds, step) {
    const digits = step >= 1 ? 0 : Math.min(7, Math.ceil(-Math.log10(step) - 1e-9));
    return clock((this.epochMs ?? 0) + seconds * 1000, digits);
  }

  add(tasks, untold) {
    if (tasks.engine.length) {
      this.epochMs ??= Math.floor(tasks.since / 1000) * 1000;
      const names = tasks.names.map((name) => this.indexOf(name));
      const offset = (tasks.since - this.epochMs) / 1000;
      for (let i = 0; i < tasks.engine.length; i += 1) {
        const at = this.n % MAX_TASKS;
        this.start[at] = offset + tasks.start[i] / 1000;
        this.length[at] = tasks.ms[i] / 1000;
        this.engine[at] = tasks.engine[i];
        this.name[at] = names[tasks.name[i]];
        this.failed[at] = tasks.failed[i];
        for (const fact of WAY) this[fact][at] = tasks[fact][i] ?? NaN;
        this.n += 1;
      }
    }
    this.untold += untold;
  }

  indexOf(name) {
    let index = this.nameIndex.get(name);
    if (index === undefined) {
      index = this.names.length;
      this.nameIndex.set(name, index);
      this.names.push(name);
    }
    return index;
  }

  // The engines as of a look: what they run now reaches up to the moment.
  look(at, engines) {
    this.epochMs ??= Math.floor(at / 1000) * 1000;
    this.nowS = (at - this.epochMs) / 1000;
    this.nEngines = Math.max(1, ...engines.id.slice(-1).map((id) => id + 1));
    this.running = [];
    engines.for_ms.forEach((ms, i) => { if (ms !== null) this.running.push([engines.id[i], ms / 1000, engines.task[i]]); });
    this.redraw();
  }

  redraw() {
    const shown = Math.min(this.n, MAX_TASKS);
    this.element.closest("section").hidden = !shown && !this.running.length;
    const gaps = this.untold ? `; ${this.untold.toLocaleString("en-US")} more are not drawn, so gaps may be work` : "";
    this.note.textContent = `${shown.toLocaleString("en-US")} tasks${gaps}. Click a task to see it. Drag to zoom, Ctrl and wheel to zoom in time, double click to follow.`;
    this.plot.setData([[0, 1], [0, 0]]);
  }

  draw() {
    const u = this.plot;
    const { ctx, bbox } = u;
    const { x: [x0, x1], y: [y0, y1] } = this.range();
    const sx = bbox.width / (x1 - x0);
    const row = bbox.height / (y1 - y0);
    const height = Math.max(1, row > 3 ? row * 0.8 : row);
    const top = (engine) => bbox.top + (engine - y0) * row - height / 2;
    const colours = this.names.map(colourOf);
    const bad = css("--bad");
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const last = new Map();
    const box = (start, end, engine, colour) => {
      if (end < x0 || start > x1 || engine < y0 - 0.5 || engine > y1 + 0.5) return;
      const left = bbox.left + (Math.max(start, x0) - x0) * sx;
      const width = Math.max(1, (Math.min(end, x1) - Math.max(start, x0)) * sx);
      // What would be drawn over the very same pixel is left out.
      if (width === 1 && colour !== bad) {
        const pixel = Math.round(left);
        if (last.get(engine) === pixel) return;
        last.set(engine, pixel);
      }
      ctx.fillStyle = colour;
      ctx.fillRect(left, top(engine), width > 3 ? width - 0.5 : width, height);
    };
    const n = Math.min(this.n, MAX_TASKS);
    for (let i = this.n - n; i < this.n; i += 1) {
      const at = i % MAX_TASKS;
      box(this.start[at], this.start[at] + this.length[at], this.engine[at], this.failed[at] ? bad : colours[this.name[at]]);
    }
    ctx.globalAlpha = 0.55;
    for (const [engine, seconds, name] of this.running) box(this.nowS - seconds, this.nowS, engine, colourOf(name));
    if (this.chosen) {
      ctx.globalAlpha = 1;
      ctx.strokeStyle = css("--text");
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.strokeRect(bbox.left + (this.chosen.start - x0) * sx - 2, top(this.chosen.engine) - 2, this.chosen.seconds * sx + 4, height + 4);
    }
    ctx.restore();
  }

  // A task that has ended.
  task(at) {
    return {
      engine: this.engine[at], name: this.names[this.name[at]], start: this.start[at], seconds: this.length[at],
      failed: this.failed[at] === 1, runs: false, startMs: this.epochMs + this.start[at] * 1000,
      ...Object.fromEntries(WAY.map((fact) => [fact, this[fact][at]])),
    };
  }

  // The tasks of an engine that have ended, in the order of their starts.
  tasksOf(engine) {
    const tasks = [];
    for (let i = this.n - Math.min(this.n, MAX_TASKS); i < this.n; i += 1) if (this.engine[i % MAX_TASKS] === engine) tasks.push(this.task(i % MAX_TASKS));
    return tasks.sort((a, b) => a.start - b.start);
  }

  taskAtCursor() {
    const { left, top } = this.plot.cursor;
    if (left < 0) return null;
    const x = this.plot.posToVal(left, "x");
    const engine = Math.round(this.plot.posToVal(top, "y"));
    const near = (this.range().x[1] - this.range().x[0]) / this.plot.over.clientWidth * 2;
    const n = Math.min(this.n, MAX_TASKS);
    for (let i = this.n - 1; i >= this.n - n; i -= 1) {
      const at = i % MAX_TASKS;
      if (this.engine[at] === engine && x >= this.start[at] - near && x <= this.start[at] + this.length[at] + near) return this.task(at);
    }
    const now = this.running.find(([id, seconds]) => id === engine && x >= this.nowS - seconds && x <= this.nowS);
    if (!now) return null;
    const start = this.nowS - now[1];
    return { engine, name: now[2], start, seconds: now[1], failed: false, runs: true, startMs: this.epochMs + start * 1000 };
  }

  words(task) {
    const length = task.runs ? `has run for ${duration(task.seconds)}` : `${duration(task.seconds)}${task.failed ? ", failed" : ""}`;
    return `${task.name || "task"} on engine ${task.engine}\n${length}\n${clock(task.startMs, 3)}`;
  }

  showTip() {
    const task = this.taskAtCursor();
    this.tip.hidden = !task;
    if (!task) return;
    const { left, top } = this.plot.cursor;
    const over = this.plot.over.getBoundingClientRect();
    this.tip.textContent = this.words(task);
    this.tip.style.left = `${Math.min(over.left + left + 12, innerWidth - this.tip.offsetWidth - 8)}px`;
    this.tip.style.top = `${over.top + top + 14}px`;
  }
}
