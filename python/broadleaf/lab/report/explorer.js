"use strict";
// Draws the figures, then the charts that follow the drop-downs.
(async function () {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const options = { actions: { export: true, source: false, compiled: false, editor: false }, renderer: "svg" };
  const put = async (id, spec) => {
    try {
      await vegaEmbed("#" + id, spec, options);
    } catch (error) {
      const place = document.getElementById(id);
      place.textContent = "This chart could not be drawn: " + error;
      place.className = "error";
    }
  };

  const data = read("explorer-data");
  if (data) await explore(data);
  for (const [id, spec] of Object.entries(read("specs"))) await put(id, spec);
  document.body.dataset.ready = "yes";

  async function explore(data) {
    const BLUE = "#2166ac", RED = "#b2182b", INK = "#222222", GREY = "#8c8c8c";
    const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c510a", "#555555"];
    const config = {
      font: "Liberation Sans, Arial, Helvetica, sans-serif",
      axis: { labelFontSize: 12, titleFontSize: 13, titleFontWeight: "normal", labelLimit: 280, gridColor: "#e6e6e6" },
      legend: { labelFontSize: 12, titleFontSize: 12, titleLimit: 260 },
      title: { fontSize: 15, anchor: "start", subtitleColor: "#555", subtitleFontSize: 12 },
      view: { stroke: "#ccc" },
    };
    const select = (id) => document.getElementById(id);
    const fill = (id, names, chosen) => {
      for (const name of names) select(id).add(new Option(name, name, false, name === chosen));
    };
    const NOTHING = "(nothing)";
    const contexts = data.factors.map((f) => f.name);
    fill("treatment", data.treatments, data.treatments[0]);
    fill("colour", [NOTHING, ...contexts], data.second || NOTHING);
    fill("order", Object.keys(data.paths));

    const level = (row, factor) => factor.levels[data.context[factor.name][row]];
    const shown = (time_us, scale) => (scale === "rate" ? 1e6 / time_us : time_us / data.unit_us);
    const unit = (scale) => (scale === "rate" ? "tasks per second" : "time per task (" + data.unit + ")");
    const median = (values) => {
      const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
      return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    };
    const text = (value) => (Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2));

    function colouring(by) {
      const factor = data.factors.find((f) => f.name === by);
      if (!factor) return null;
      return { factor, encoding: { field: "context", type: "nominal", title: by, sort: factor.levels, legend: { orient: "bottom" },
        scale: { domain: factor.levels, range: factor.levels.map((_, i) => COLOURS[i % COLOURS.length]) } } };
    }

    function scatter(treatment, by, scale) {
      const t = data.treatments.indexOf(treatment), colour = colouring(by), values = [];
      data.treatment.forEach((own, row) => {
        if (own !== t) return;
        const value = { before: shown(data.before_us[row], scale), after: shown(data.after_us[row], scale) };
        if (colour) value.context = level(row, colour.factor);
        values.push(value);
      });
      const all = values.flatMap((v) => [v.before, v.after]);
      const log = scale === "log", top = Math.max(...all), low = Math.min(...all);
      const domain = log ? [low / 1.05, top * 1.05] : [0, top * 1.04];
      const kind = { type: log ? "log" : "linear", domain, nice: false, zero: false };
      const axis = { format: ",.6~g", tickCount: 6 };
      const better = scale === "rate" ? "Above" : "Below";
      return {
        width: 400, height: 400, config,
        title: { text: treatment + ": before and after", subtitle: values.length + " contexts. " + better + " the dashed line it is faster." },
        layer: [
          { data: { values }, mark: { type: "circle", size: 36, opacity: 0.6 }, encoding: {
            x: { field: "before", type: "quantitative", scale: kind, axis, title: unit(scale) + " before" },
            y: { field: "after", type: "quantitative", scale: kind, axis, title: unit(scale) + " after" },
            ...(colour ? { color: colour.encoding } : { color: { value: COLOURS[0] } }) } },
          { data: { values: domain.map((d) => ({ before: d, after: d })) },
            mark: { type: "line", strokeDash: [5, 4], color: INK, strokeWidth: 1.2 },
            encoding: { x: { field: "before", type: "quantitative" }, y: { field: "after", type: "quantitative" } } },
        ],
      };
    }

    function split(by, scale) {
      const colour = colouring(by), groups = new Map();
      data.treatment.forEach((t, row) => {
        const context = colour ? level(row, colour.factor) : "all contexts";
        if (colour && data.treatments[t] === by) return;
        const key = t + "|" + context;
        if (!groups.has(key)) groups.set(key, { name: data.treatments[t], context, values: [] });
        const before = data.before_us[row], after = data.after_us[row];
        groups.get(key).values.push(scale === "log" ? 100 * (after / before - 1) : shown(after, scale) - shown(before, scale));
      });
      const levels = colour ? colour.factor.levels : ["all contexts"];
      const values = [...groups.values()].map((g) => ({ name: g.name, context: g.context, value: median(g.values), n: g.values.length,
        place: levels.indexOf(g.context) }));
      const title = scale === "log" ? "median change of time per task (%)" : "median change of " + unit(scale);
      const encoding = colour ? colour.encoding : { field: "context", type: "nominal", title: null, scale: { range: [BLUE] } };
      return {
        width: 330, height: { step: levels.length > 1 ? 11 : 20, ...(levels.length > 1 ? { for: "offset" } : {}) }, config,
        title: { text: "Every treatment" + (colour ? ", split by " + by : ""),
          subtitle: scale === "rate" ? "Right of zero is faster." : "Left of zero is faster." },
        data: { values },
        layer: [
          { mark: "bar", encoding: {
            y: { field: "name", type: "nominal", sort: data.treatments, title: null },
            ...(levels.length > 1 ? { yOffset: { field: "place", type: "ordinal" } } : {}),
            x: { field: "value", type: "quantitative", title, axis: { format: ",.6~g", tickCount: 6 } }, color: encoding,
            tooltip: [{ field: "name" }, { field: "context" }, { field: "value", format: ".3~g" }, { field: "n" }] } },
          { data: { values: [{ zero: 0 }] }, mark: { type: "rule", color: INK }, encoding: { x: { field: "zero", type: "quantitative" } } },
        ],
      };
    }

    function waterfall(order, scale) {
      const steps = data.paths[order];
      if (!steps || !steps.length) return null;
      const first = steps[0].before_us, last = steps[steps.length - 1].after_us;
      const bar = (name, from, to, effect, label) => ({ name, from, to, end: Math.max(from, to), effect, label });
      const values = [bar("baseline", 0, shown(first, scale), "total", text(shown(first, scale)))];
      for (const step of steps) {
        const from = shown(step.before_us, scale), to = shown(step.after_us, scale), change = to - from;
        const sign = change > 0 ? "+" : change < 0 ? "\u2212" : "";
        const label = (scale === "log" ? sign + text(Math.abs(100 * change / from)) + " %" : sign + text(Math.abs(change))) + " \u2192 " + text(to);
        values.push(bar(step.name, from, to, step.after_us <= step.before_us ? "faster" : "slower", label));
      }
      values.push(bar("all of these", 0, shown(last, scale), "total", text(shown(last, scale))));
      const log = scale === "log", ends = values.flatMap((v) => [v.from, v.to]).filter((v) => v > 0);
      const low = Math.min(...ends) / 1.1, top = Math.max(...ends);
      if (log) for (const v of values) v.from = Math.max(v.from, low);
      const kind = log ? { type: "log", domain: [low, top * Math.pow(top / low, 0.25)], nice: false } : { domain: [0, top * 1.22] };
      const y = { field: "name", type: "nominal", sort: values.map((v) => v.name), title: null };
      return {
        width: 720, height: { step: 22 }, config, data: { values },
        title: { text: "Path: " + order, subtitle: "Each bar starts where the one above ended." },
        layer: [
          { mark: { type: "bar" }, encoding: { y,
            x: { field: "from", type: "quantitative", scale: kind, title: unit(scale), axis: { format: ",.6~g", tickCount: 7 } }, x2: { field: "to" },
            color: { field: "effect", type: "nominal", title: "step makes it", scale: { domain: ["faster", "slower", "total"], range: [BLUE, RED, GREY] } } } },
          { mark: { type: "text", align: "left", dx: 5, fontSize: 11.5 }, encoding: { y, x: { field: "end", type: "quantitative" }, text: { field: "label" } } },
        ],
      };
    }

    async function draw() {
      const treatment = select("treatment").value, by = select("colour").value, scale = select("scale").value;
      await put("scatter", scatter(treatment, by, scale));
      await put("split", split(by, scale));
      const path = waterfall(select("order").value, scale);
      if (path) await put("path", path);
    }
    for (const id of ["treatment", "colour", "scale", "order"]) select(id).addEventListener("change", draw);
    await draw();
  }
})();
