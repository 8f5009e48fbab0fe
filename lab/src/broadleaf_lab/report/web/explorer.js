"use strict";
// Draws the figures, then the charts that follow what one chooses and drags. What is folded is drawn when it is opened.
(async function () {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const { put } = charts;

  const data = read("explorer-data"), model = read("model");
  const folded = (id) => document.getElementById(id).closest("details");
  const specs = Object.entries(read("specs"));
  for (const [id, spec] of specs) if (!folded(id)) await put(id, spec);
  const orders = data ? await explore(data) : null;
  if (model) settings(model, orders);
  for (const [id, spec] of specs) if (folded(id)) folded(id).addEventListener("toggle", () => put(id, spec), { once: true });
  contents();
  document.body.dataset.ready = "yes";

  // A link to something folded opens it; the contents show where the reader is.
  function contents() {
    const open = () => {
      const goal = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
      const fold = goal && (goal.closest("details") || goal.querySelector(":scope > details"));
      if (fold && !fold.open) { fold.open = true; goal.scrollIntoView(); }
    };
    addEventListener("hashchange", open);
    open();
    const links = new Map([...document.querySelectorAll("nav a")].map((a) => [document.getElementById(a.hash.slice(1)), a]));
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) links.get(entry.target).classList.toggle("here", entry.isIntersecting);
    }, { rootMargin: "-20% 0px -60% 0px" });
    for (const goal of links.keys()) seen.observe(goal);
  }

  async function explore(data) {
    const BLUE = "#2166ac", RED = "#b2182b", INK = "#222222", GREY = "#8c8c8c";
    const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c510a", "#555555"];
    const config = {
      font: "Liberation Sans, Arial, Helvetica, sans-serif",
      axis: { labelFontSize: 12, titleFontSize: 13, titleFontWeight: "normal", labelLimit: 280, gridColor: "#e6e6e6" },
      axisQuantitative: { labelOverlap: "parity", labelSeparation: 6 },
      legend: { labelFontSize: 12, titleFontSize: 12, titleLimit: 260 },
      title: { fontSize: 15, anchor: "start", subtitleColor: "#555", subtitleFontSize: 12 },
      background: "white",
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

    let kept = data.treatment.map(() => true);
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
        if (own !== t || !kept[row]) return;
        const value = { before: shown(data.before_us[row], scale), after: shown(data.after_us[row], scale) };
        if (colour) value.context = level(row, colour.factor);
        values.push(value);
      });
      if (!values.length) return empty(treatment + ": before and after");
      const all = values.flatMap((v) => [v.before, v.after]);
      const log = scale === "log", top = Math.max(...all), low = Math.min(...all);
      const domain = log ? [low / 1.05, top * 1.05] : [0, top * 1.04];
      const kind = { type: log ? "log" : "linear", domain, nice: false, zero: false };
      const axis = { format: ",.6~g", tickCount: 6 };
      const better = scale === "rate" ? "Above" : "Below";
      return {
        width: 380, height: 380, config,
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

    const empty = (title) => ({ width: 400, height: 60, config, data: { values: [{}] }, mark: { type: "text" },
      title: { text: title }, encoding: { text: { value: "No runs satisfy the condition." } } });

    function split(by, scale) {
      const colour = colouring(by), groups = new Map();
      data.treatment.forEach((t, row) => {
        if (!kept[row]) return;
        const context = colour ? level(row, colour.factor) : "all contexts";
        if (colour && data.treatments[t] === by) return;
        const key = t + "|" + context;
        if (!groups.has(key)) groups.set(key, { name: data.treatments[t], context, values: [] });
        const before = data.before_us[row], after = data.after_us[row];
        groups.get(key).values.push(scale === "log" ? 100 * (after / before - 1) : shown(after, scale) - shown(before, scale));
      });
      if (!groups.size) return empty("Every treatment");
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

    const fold = folded("scatter");
    async function draw() {
      if (!fold.open) return;
      const treatment = select("treatment").value, by = select("colour").value, scale = select("scale").value;
      await put("scatter", scatter(treatment, by, scale));
      await put("split", split(by, scale));
      const path = waterfall(select("order").value, scale);
      if (path) await put("path", path);
    }
    function filter() {
      const names = data.factors.map((f) => f.name), said = select("condition-error");
      said.textContent = "";
      try {
        const test = condition(select("condition").value, names);
        kept = data.treatment.map((_, row) =>
          test(Object.fromEntries(data.factors.map((f) => [f.name, f.values[data.context[f.name][row]]]))));
      } catch (error) {
        said.textContent = "Not a condition: " + error.message + ".";
        return;
      }
      draw();
    }
    for (const id of ["treatment", "colour", "scale", "order"]) select(id).addEventListener("change", draw);
    select("condition").addEventListener("change", filter);
    fold.addEventListener("toggle", draw);
    if (data.questions.length) {
      fill("question", data.questions.map((asked) => asked.question));
      select("question").addEventListener("change", () => {
        const asked = data.questions.find((one) => one.question === select("question").value);
        if (!asked) return;
        for (const id of ["treatment", "scale", "order"]) if (asked[id]) select(id).value = asked[id];
        if ("colour" in asked) select("colour").value = asked.colour || NOTHING;
        select("condition").value = asked.condition || "";
        filter();
      });
    }

    // Shows an order of one's own among the paths.
    return async function (name, steps) {
      if (!(name in data.paths)) select("order").add(new Option(name, name));
      data.paths[name] = steps;
      select("order").value = name;
      await draw();
    };
  }

  // Sliders and an order that one drags: what the model says of any configuration.
  function settings(model, show) {
    const { predict, forbidden, baseline } = predictor(model);
    const places = [...baseline], rows = document.getElementById("sliders"), list = document.getElementById("own-path");
    const digits = (value) => Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
    const time = (us) => digits(us / model.unit_us) + "\u00a0" + model.unit;
    const tells = (factor, place) => factor.name + (factor.levels.length === 2 && factor.levels[1] === "on" && place === 1 ? "" : " = " + factor.levels[place]);

    function tell() {
      const now = predict(places), then = predict(baseline), broken = forbidden(places);
      const times = then.us / now.us, said = document.getElementById("prediction");
      said.innerHTML = "";
      said.append(Object.assign(document.createElement("b"), { textContent: time(now.us) + " per task" }),
        " (95 % interval " + digits(now.low_us / model.unit_us) + " to " + time(now.high_us) + "), " + digits(1e6 / now.us) + " tasks per second: " +
        (Math.abs(times - 1) < 0.005 ? "as the baseline" : times > 1 ? digits(times) + " times as fast as the baseline" : digits(1 / times) + " times as slow as the baseline") + ".");
      if (broken.length) said.append(" The study does not allow this: " + broken.join(", ") + ".");
    }

    model.factors.forEach((factor, i) => {
      const label = document.createElement("label"), input = document.createElement("input"), shown = document.createElement("output");
      Object.assign(input, { type: "range", min: 0, max: factor.levels.length - 1, step: 1, value: places[i] });
      input.setAttribute("aria-label", factor.name);
      const name = Object.assign(document.createElement("span"), { textContent: factor.name, className: "name" });
      const moved = () => {
        places[i] = Number(input.value);
        shown.textContent = factor.levels[places[i]];
        input.setAttribute("aria-valuetext", factor.levels[places[i]]);
      };
      input.addEventListener("input", () => { moved(); tell(); order(); });
      moved();
      label.append(name, input, shown);
      rows.append(label);
    });

    // The level that a step of the path sets: the slider's, or the last one where that is at its default.
    const goal = (i) => (places[i] !== baseline[i] ? places[i] : model.factors[i].on);

    function order() {
      const now = [...baseline], steps = [];
      let before = predict(now);
      for (const item of list.children) {
        const i = Number(item.dataset.factor);
        now[i] = goal(i);
        const after = predict(now), change = 100 * (after.us / before.us - 1);
        item.querySelector("b").textContent = tells(model.factors[i], goal(i));
        item.querySelector("output").textContent = time(before.us) + " \u2192 " + time(after.us) + " (" + (change < 0 ? "\u2212" : "+") + Math.abs(change).toFixed(1) + " %)" +
          (forbidden(now).length ? ", not allowed: " + forbidden(now).join(", ") : "");
        steps.push({ name: tells(model.factors[i], goal(i)), before_us: before.us, after_us: after.us });
        before = after;
      }
      return steps;
    }
    const dragged = () => { const steps = order(); if (show) show("my order", steps); };

    for (const i of model.order) {
      const item = document.createElement("li"), handle = document.createElement("span");
      item.dataset.factor = i;
      Object.assign(handle, { textContent: "\u2630", className: "handle", title: "Drag" });
      const button = (text, word, move) => {
        const made = Object.assign(document.createElement("button"), { type: "button", textContent: text });
        made.setAttribute("aria-label", word + " " + model.factors[i].name);
        made.addEventListener("click", () => { move(); made.focus(); dragged(); });
        return made;
      };
      const up = () => item.previousElementSibling && item.previousElementSibling.before(item);
      const down = () => item.nextElementSibling && item.nextElementSibling.after(item);
      item.append(handle, button("\u2191", "Earlier:", up), button("\u2193", "Later:", down), document.createElement("b"), document.createElement("output"));
      handle.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        handle.setPointerCapture(event.pointerId);
        item.classList.add("dragged");
      });
      handle.addEventListener("pointermove", (event) => {
        if (!handle.hasPointerCapture(event.pointerId)) return;
        const over = [...list.children].find((other) => { const at = other.getBoundingClientRect(); return event.clientY >= at.top && event.clientY < at.bottom; });
        if (!over || over === item) return;
        if (item.compareDocumentPosition(over) & Node.DOCUMENT_POSITION_FOLLOWING) over.after(item);
        else over.before(item);
        order();
      });
      handle.addEventListener("pointerup", () => { item.classList.remove("dragged"); dragged(); });
      list.append(item);
    }
    tell();
    order();
  }
})();
