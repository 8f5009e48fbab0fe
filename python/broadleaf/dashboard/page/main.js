// The page: reads one stream, and decides what to show.

import * as charts from "./charts.js";
import { Detail } from "./detail.js";
import { Engines } from "./engines.js";
import { duration } from "./format.js";
import { Errors, Log, showDeaths, showFunctions, showHosts, showProgress, showTiles } from "./panels.js";
import { showRoutes } from "./routes.js";
import { Timeline } from "./timeline.js";

const at = (id) => document.getElementById(id);
// The token need not stay in the address, nor in what is copied from there. This tab keeps it; no other port of this
// host can read it there, as it could a cookie.
const given = new URLSearchParams(location.search).get("token");
if (given) {
  sessionStorage.setItem("broadleaf-token", given);
  history.replaceState(null, "", location.pathname);
}
const token = sessionStorage.getItem("broadleaf-token");

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").textContent = theme === "dark" ? "Light" : "Dark";
}
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const chosenTheme = () => localStorage.getItem("broadleaf-theme") ?? (prefersDark.matches ? "dark" : "light");
setTheme(chosenTheme());

const throughput = charts.throughput(at("throughput"));
const queue = charts.queue(at("queue"));
const openEngine = (id) => detail.openEngine(id);
const timeline = new Timeline(at("timeline"), at("timeline-note"), at("timeline-buttons"), at("timeline-said"), at("tip"), (task) => detail.openTask(task));
const engines = new Engines(at("engines-table"), at("engines-grid"), at("engines-note"), at("engines-filter"), at("tip"), openEngine);
const errors = new Errors(at("errors"), at("errors-note"), openEngine);
const detail = new Detail(at("detail"), at("detail-title"), at("detail-body"), at("detail-close"), {
  ask: askEngine, tasksOf: (id) => timeline.tasksOf(id), revealError: (key) => errors.reveal(key),
});
const log = new Log(at("log"));
let isPaused = false;
let latest = null;

// What an engine has written since, or why that is not known.
async function askEngine(id, { pid, output, log }) {
  const query = new URLSearchParams(pid === null ? {} : { pid, output, log });
  if (token) query.set("token", token);
  const answer = await fetch(`engine/${id}?${query}`).catch(() => null);
  return answer?.ok ? answer.json() : { failed: "the dashboard does not answer" };
}

function recolour() {
  setTheme(chosenTheme());
  for (const plot of [throughput, queue, timeline]) plot.make();
  throughput.add([]);
  queue.add([]);
  if (latest) show(latest);
}
prefersDark.addEventListener("change", recolour);
at("theme").addEventListener("click", () => {
  localStorage.setItem("broadleaf-theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  recolour();
});
at("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  detail.isPaused = isPaused;
  at("pause").textContent = isPaused ? "Resume" : "Pause";
  if (!isPaused && latest) show(latest);
});

function setState(text, kind) {
  at("state").textContent = text;
  at("state").className = `state ${kind}`;
}

function show(look) {
  const clients = look.cluster.clients;
  at("facts").textContent = `cluster ${look.cluster.id} · up ${duration(look.cluster.uptime_s)} · ${clients} ${clients === 1 ? "client" : "clients"}`;
  document.title = `${look.cluster.id} · Broadleaf`;
  showTiles(at("tiles"), look.cluster, look.point);
  showFunctions(at("functions"), look.functions);
  errors.show(look.errors);
  showProgress(at("progress"), look.progress);
  showHosts(at("hosts"), look.hosts);
  showDeaths(at("deaths"), at("deaths-note"), at("alert"), look.deaths, openEngine);
  showRoutes(at("transfers"), look.transfers, look.hosts);
  timeline.look(look.at, look.engines);
  engines.look(look.engines);
  detail.look(look);
}

const stream = new EventSource(token ? `stream?token=${encodeURIComponent(token)}` : "stream");
stream.addEventListener("history", (event) => {
  const past = JSON.parse(event.data);
  for (const part of [throughput, queue, timeline, log]) part.clear();
  throughput.add(past.series);
  queue.add(past.series);
  timeline.add(past.tasks, 0);
  log.add(past.lines);
  if (past.look) { latest = past.look; show(latest); }
  if (past.lost) setState(past.lost, "lost"); else setState("live", "live");
});
stream.addEventListener("look", (event) => {
  latest = JSON.parse(event.data);
  throughput.add(latest.points);
  queue.add(latest.points);
  timeline.add(latest.tasks, latest.untold);
  log.add(latest.lines);
  setState(isPaused ? "paused" : "live", isPaused ? "" : "live");
  if (!isPaused) show(latest);
  document.documentElement.dataset.looks = Number(document.documentElement.dataset.looks ?? 0) + 1;
});
stream.addEventListener("lost", (event) => setState(JSON.parse(event.data).why, "lost"));
stream.addEventListener("error", () => {
  // A stream that is refused is closed; one that is lost is opened again.
  const isRefused = stream.readyState === EventSource.CLOSED;
  setState(isRefused ? "open the address with the token again" : "the dashboard does not answer", "lost");
});
