"use strict";
// Draws charts where they fit: `put(id, spec)` in the element of that id, in the reader's colours, no wider than the page.
const charts = (() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const options = { actions: { export: true, source: false, compiled: false, editor: false }, renderer: "svg" };
  const MIN_WIDTH = 150, WIDE = 700;
  // Ink, lines and the two colours with a meaning, as they are on white and as they are on black.
  const AT_NIGHT = {
    "white": "#16191d", "#222222": "#e4e6e8", "#222": "#e4e6e8", "#333333": "#d0d4d8", "#555555": "#aab1b8", "#555": "#aab1b8",
    "#e6e6e6": "#30363c", "#999999": "#79828a", "#cccccc": "#424a52", "#ccc": "#424a52", "#8c8c8c": "#8f979e",
    "#dddddd": "#343b42", "#2166ac": "#5aa9ea", "#b2182b": "#f2756a", "#0072b2": "#3f8cff", "#56b4e9": "#9bdcff", "#d55e00": "#ff8f3f",
    "#8c510a": "#c98f4e",
  };
  const drawn = new Map();

  function themed(spec) {
    if (!dark.matches || (spec.usermeta || {}).onWhite) return spec;
    const painted = (value, key) => {
      if (typeof value === "string") return AT_NIGHT[value.toLowerCase()] || value;
      if (Array.isArray(value)) return value.map((item) => painted(item));
      if (!value || typeof value !== "object" || key === "data" || key === "datasets") return value;
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, painted(item, name)]));
    };
    const night = painted(spec);
    const ink = { labelColor: "#c3c8cd", titleColor: "#d0d4d8" };
    const config = night.config || {};
    night.background = "#16191d";
    night.config = { ...config, axis: { ...ink, ...config.axis }, legend: { ...ink, ...config.legend }, header: { ...ink, ...config.header },
      title: { color: "#e4e6e8", ...config.title }, text: { color: "#e4e6e8", ...config.text } };
    return night;
  }

  const placed = (room) => room < 420 ? { orient: "bottom", direction: "vertical", columns: 1 }
    : { orient: "bottom", direction: "horizontal", columns: 3, labelLimit: room / 3.5 };

  const wrapped = (lines, maxChars) => {
    const found = [""];
    for (const word of [lines].flat().join(" ").split(" ")) {
      const last = found[found.length - 1];
      if (last && last.length + 1 + word.length > maxChars) found.push(word);
      else found[found.length - 1] = last ? last + " " + word : word;
    }
    return found;
  };

  // Every legend below the chart: in a row where there is room for three words, in one column on a phone.
  const below = (value, room) => {
    if (Array.isArray(value)) return value.map((item) => below(item, room));
    if (!value || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) =>
      key === "data" || key === "datasets" ? [key, item]
        : key === "legend" && item ? [key, { ...item, ...placed(room), ...(item.columns && { columns: item.columns, labelLimit: 0.55 * room }) }] : [key, below(item, room)]));
  };

  // The chart with the lines of its titles as long as `width` has room for.
  function titled(spec, width) {
    const title = typeof spec.title === "object" && !Array.isArray(spec.title) ? spec.title : spec.title && { text: spec.title };
    if (!title) return { ...spec };
    const made = { ...title, frame: "bounds", text: wrapped(title.text, Math.floor(width / 9.2)) };
    if (title.subtitle) made.subtitle = wrapped(title.subtitle, Math.floor(width / 6.8));
    return { ...spec, title: made };
  }

  // The same with each part below the one before.
  function stacked(spec, width) {
    const narrow = titled(spec, width);
    if (spec.hconcat) {
      narrow.vconcat = spec.hconcat.map((part) => stacked(part, width));
      delete narrow.hconcat;
    } else if (spec.concat) {
      Object.assign(narrow, { concat: spec.concat.map((part) => stacked(part, width)), columns: 1 });
    } else if (spec.facet && spec.columns) {
      narrow.columns = 1;
    }
    const legend = (narrow.config || {}).legend;
    narrow.config = { ...narrow.config, legend: { ...legend, ...placed(width) } };
    return narrow;
  }

  // The chart with every part less wide by `by`.
  function narrower(spec, by) {
    const less = { ...spec };
    if (typeof spec.width === "number") less.width = Math.max(MIN_WIDTH, spec.width - by);
    for (const key of ["hconcat", "vconcat", "concat"]) if (spec[key]) less[key] = spec[key].map((part) => narrower(part, by));
    if (spec.spec) less.spec = narrower(spec.spec, by);
    return less;
  }

  const columns = (spec) => (spec.hconcat || []).length || Math.min(spec.columns || Infinity, (spec.concat || [0]).length);

  async function draw(id, spec) {
    const place = document.getElementById(id), room = place.clientWidth;
    const width = () => place.querySelector("svg").width.baseVal.value;
    try {
      let shown = themed(spec);
      await vegaEmbed(place, shown, options);
      if (width() <= room + 1) return;
      // With room for them, parts stay beside each other and get narrower.
      for (let tries = 0; room >= WIDE && tries < 6; tries++) {
        shown = tries ? narrower(shown, Math.ceil(1.3 * (width() - room) / columns(shown))) : titled(shown, room - 30);
        await vegaEmbed(place, shown, options);
        if (width() <= room + 1) return;
      }
      shown = below(stacked(themed(spec), room - 30), room);
      await vegaEmbed(place, shown, options);
      for (let tries = 0; tries < 6 && width() > room + 1; tries++) {
        shown = narrower(shown, width() - room);
        await vegaEmbed(place, shown, options);
      }
    } catch (error) {
      place.textContent = "This chart could not be drawn: " + error;
      place.className = "error";
    }
  }

  async function put(id, spec) {
    drawn.set(id, spec);
    await draw(id, spec);
  }
  async function again() {
    for (const [id, spec] of drawn) await draw(id, spec);
  }
  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    if (Math.abs(innerWidth - width) > 16) waiting = setTimeout(() => { width = innerWidth; again(); }, 250);
  });
  dark.addEventListener("change", again);
  return { put };
})();
