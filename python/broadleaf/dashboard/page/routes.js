// Broadcasts as they travel: each object's tree of hosts, and how much of it each host has.

import { bytes, count, duration, h } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
// Hosts that are drawn one by one.
const MAX_DRAWN = 40;

function svg(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

export function showRoutes(element, transfers, hosts) {
  const names = new Map(hosts.map((host) => [host.host, host.name]));
  element.closest("section").hidden = !transfers.length;
  element.replaceChildren(...transfers.map((transfer) => route(transfer, names)));
}

function route(transfer, names) {
  const stops = transfer.stops;
  const wanted = stops.slice(1);
  const done = wanted.filter((stop) => stop.took_ns !== null);
  const gone = wanted.filter((stop) => stop.gone && stop.took_ns === null).length;
  const slowest = Math.max(0, ...done.map((stop) => stop.took_ns)) / 1e9;
  const state = done.length + gone === wanted.length
    ? `at ${done.length === 1 ? "1 host" : `all ${count(done.length)} hosts`} after ${duration(slowest)}`
    : `${count(done.length)} of ${count(wanted.length)} hosts have it`;
  const lost = gone ? `, ${count(gone)} lost` : "";
  const title = h("div", {}, h("b", {}, bytes(transfer.len_bytes)), ` ${state}${lost} `,
    h("span", { class: "faint" }, `${transfer.shape}, ${duration(Math.round(transfer.ago_ns / 1e9))} ago`));
  const levels = levelsOf(stops);
  return h("div", { class: "route" }, title, stops.length <= MAX_DRAWN ? tree(transfer, levels, names) : summary(transfer, levels));
}

// Stops by their distance from the origin. Parents stand before their children.
function levelsOf(stops) {
  const depth = new Map([[stops[0].host, 0]]);
  const levels = [[stops[0]]];
  for (const stop of stops.slice(1)) {
    const level = (depth.get(stop.parent) ?? 0) + 1;
    depth.set(stop.host, level);
    (levels[level] ??= []).push(stop);
  }
  return levels;
}

// From top to bottom; from left to right where it is deeper than wide, as a chain is.
function tree(transfer, levels, names) {
  const widest = Math.max(...levels.map((level) => level.length));
  const isDeep = levels.length > widest;
  const width = 560;
  const stepPx = isDeep ? 50 : 74;
  const height = (isDeep ? widest : levels.length) * stepPx;
  const hasNames = width / (isDeep ? levels.length : widest) > 40;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const places = new Map();
  levels.forEach((level, depth) => level.forEach((stop, i) => {
    const along = (i + 0.5) / level.length;
    places.set(stop.host, isDeep ? [(depth + 0.5) * width / levels.length, along * height - 8] : [along * width, depth * stepPx + 18]);
  }));
  const radius = 11;
  for (const stop of levels.slice(1).flat()) {
    const [[x1, y1], [x2, y2]] = [places.get(stop.parent) ?? places.get(levels[0][0].host), places.get(stop.host)];
    // It begins below the parent's name.
    const ends = isDeep ? { x1: x1 + radius + 3, y1, x2: x2 - radius - 3, y2 } : { x1, y1: y1 + 33, x2, y2: y2 - radius - 3 };
    drawing.append(svg("line", { ...ends, class: stop.took_ns === null ? "" : "done" }));
  }
  const around = 2 * Math.PI * radius;
  for (const stop of levels.flat()) {
    const [x, y] = places.get(stop.host);
    const share = transfer.len_bytes ? stop.have_bytes / transfer.len_bytes : 1;
    const state = stop.gone && stop.took_ns === null ? "gone" : share >= 1 ? "done" : "";
    const name = names.get(stop.host) ?? `host ${stop.host}`;
    const node = svg("g", {});
    node.append(svg("title", {}, `${name}: ${bytes(stop.have_bytes)}${stop.took_ns === null ? "" : ` after ${duration(stop.took_ns / 1e9)}`}`));
    node.append(svg("circle", { cx: x, cy: y, r: radius, class: "ring" }));
    node.append(svg("circle", { cx: x, cy: y, r: radius, class: `have ${state}`, transform: `rotate(-90 ${x} ${y})`, "stroke-dasharray": `${(state === "gone" ? 1 : share) * around} ${around}` }));
    if (hasNames) node.append(svg("text", { x, y: y + 27 }, name.length > 14 ? `${name.slice(0, 13)}…` : name));
    drawing.append(node);
  }
  return drawing;
}

function summary(transfer, levels) {
  const rows = levels.slice(1).map((level, i) => {
    const have = level.reduce((sum, stop) => sum + stop.have_bytes, 0) / Math.max(1, level.length * transfer.len_bytes);
    const filled = h("i");
    filled.style.width = `${100 * have}%`;
    const done = level.filter((stop) => stop.took_ns !== null).length;
    return h("div", { class: "faint" }, h("span", { class: "bar" }, filled), `level ${i + 1}: ${count(done)} of ${count(level.length)} hosts`);
  });
  return h("div", {}, ...rows);
}
