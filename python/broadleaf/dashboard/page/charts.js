// Throughput and queue over time.
/* global uPlot */

import { clock, count, css, rate } from "./format.js";

const MAX_POINTS = 1800;
const WINDOW_S = [60, 300];

// Where a column has null, nothing was measured: the line ends, and begins again after it.
// A chart of columns of the looks' points; `lines` are [label, column, colour, isFilled].
export class Series {
  constructor(element, lines, format) {
    this.element = element;
    this.lines = lines;
    this.format = format;
    this.data = [[], ...lines.map(() => [])];
    this.make();
    new ResizeObserver(() => this.plot.setSize(this.size())).observe(element);
  }

  size() {
    return { width: Math.max(200, this.element.clientWidth), height: this.element.clientHeight - 26 };
  }

  // Makes the plot; again when the colours change.
  make() {
    this.plot?.destroy();
    const axis = { stroke: css("--faint"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 } };
    const series = this.lines.map(([label, , colour, fill]) => ({
      label, stroke: css(colour), width: 1.5, spanGaps: false, fill: fill ? `${css(colour)}22` : undefined, points: { show: false },
      value: (_, v) => (v === null || v === undefined ? "–" : this.format(v)),
    }));
    this.plot = new uPlot({
      ...this.size(),
      // One minute at least, so that a short history does not look like a long one, and five at most.
      scales: {
        x: { range: (u) => { return u.zoomed ?? this.window(); } },
        y: { range: (_, low, high) => [0, Math.max(1, (high ?? 1) * 1.1)] },
      },
      axes: [{ ...axis, size: 30, space: 70, values: (_, times) => times.map((t) => clock(t * 1000)) }, { ...axis, size: 60, values: (_, values) => values.map((v) => (v >= 1e6 ? `${v / 1e6} M` : v >= 1e4 ? `${v / 1e3} k` : rate(v))) }],
      series: [{ value: (_, v) => (v ? clock(v * 1000) : "–") }, ...series],
      cursor: { sync: { key: "time" }, drag: { setScale: false } },
      hooks: {
        setSelect: [(u) => {
          if (u.select.width < 3) return;
          u.zoomed = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          u.setData(this.data);
        }],
      },
    }, this.data, this.element);
    this.plot.over.addEventListener("dblclick", () => { this.plot.zoomed = null; this.plot.setData(this.data); });
  }

  window() {
    const times = this.data[0];
    const end = times.length ? times[times.length - 1] : Date.now() / 1000;
    const length = times.length ? end - times[0] : 0;
    return [end - Math.max(WINDOW_S[0], Math.min(WINDOW_S[1], length)), end];
  }

  clear() {
    this.data = this.data.map(() => []);
  }

  add(points) {
    for (const point of points) {
      this.data[0].push(point[0] / 1000);
      this.lines.forEach(([, column], i) => this.data[i + 1].push(point[column]));
    }
    const extra = this.data[0].length - MAX_POINTS;
    if (extra > 0) for (const column of this.data) column.splice(0, extra);
    this.plot.setData(this.data);
    // Where the cursor is elsewhere, the legend tells the newest.
    if (this.plot.cursor.left < 0 && this.data[0].length) this.plot.setLegend({ idx: this.data[0].length - 1 }, false);
  }
}

export const throughput = (element) => new Series(element, [["tasks/s", 1, "--accent", true], ["errors/s", 2, "--bad", false]], rate);
export const queue = (element) => new Series(element, [["waiting", 5, "--warn", true], ["running", 6, "--busy", false]], count);
