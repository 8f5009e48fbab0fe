// Numbers as people read them.

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (n) => grouped.format(n);

export function rate(n) {
  if (n === null) return "–";
  return n > 0 && n < 10 ? n.toFixed(1) : count(n);
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 999.5 && unit < units.length - 1) { n /= 1000; unit += 1; }
  return `${unit === 0 || n >= 99.95 ? n.toFixed(0) : n.toFixed(1)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(seconds < 1e-5 ? 1 : 0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 1e-2 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

// The time of day of `ms` since 1970, with so many digits after the second.
export function clock(ms, digits = 0) {
  const date = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (digits === 0) return text;
  const fraction = ((ms % 1000) + 1000) % 1000 / 1000;
  return text + fraction.toFixed(Math.min(digits, 7)).slice(1);
}

// Elements: h("td", {class: "left"}, "text", child). Text is never read as HTML.
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Replaces what an element shows. What has the focus keeps it if it is there again, known by its `data-key`, and what is
// scrolled stays where it is.
export function refill(element, ...children) {
  const active = document.activeElement;
  const key = element.contains(active) ? active.dataset.key : undefined;
  const { scrollTop, scrollLeft } = element;
  element.replaceChildren(...children);
  Object.assign(element, { scrollTop, scrollLeft });
  if (key !== undefined) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

// A button that reads as text.
export const link = (key, label, onclick, attributes = {}) => h("button", { type: "button", class: "link", "data-key": key, onclick, ...attributes }, label);

// What a terminal would show of a line: no colours, and what was written over it last.
export function plain(text) {
  return text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]/g, "").replace(/\r$/, "").replace(/^[^]*\r/, "");
}

// A bar, and the text that it stands for.
export function bar(percent, text) {
  const filled = h("i");
  filled.style.width = `${Math.max(0, Math.min(100, percent))}%`;
  return [h("span", { class: "bar", "aria-hidden": true }, filled), h("span", { class: "figure" }, text)];
}

// One colour a function, in the order in which they are first seen; told apart by those who see colours otherwise.
const PALETTE = ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7", "#86bcb6", "#8cd17d"];
const colours = new Map();

export function colourOf(name) {
  if (!name) return "#8a948a";
  if (!colours.has(name)) colours.set(name, PALETTE[colours.size % PALETTE.length]);
  return colours.get(name);
}

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
