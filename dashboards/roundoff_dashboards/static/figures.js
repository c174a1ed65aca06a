// @ts-check
/** The figures: asked for as Plotly's own JSON, drawn again when new, zoomed together. */

import { element, rangeNow, runId, setState } from "./address.js";
import { themeNow } from "./theme.js";

/** @typedef {{data: object[], layout: Record<string, any>}} Figure */

const NARROW = 560;

/** @type {Map<string, string>} the answer's tag by what was asked, so that nothing is drawn twice */
const drawn = new Map();
/** @type {Map<string, any>} the ranges of a figure's axes before any zoom */
const whole = new Map();
let applyingZoom = false;

function metricNow() {
  return element("metric-switch")?.querySelector("[aria-current]")?.getAttribute("data-metric") ?? "lost";
}

/** @returns {any} Plotly; only after `plotlyReady` */
const plotly = () => /** @type {any} */ (globalThis).Plotly;

/** Labels are measured when they are drawn, so the font must be there. */
const fontReady = document.fonts.load("12px Inter").catch(() => []);

/** @type {Promise<void> | null} */
let plotlyLoading = null;

/** The drawing library is large, so it is read while the figures that were asked for are made. */
function plotlyReady() {
  plotlyLoading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.onload = () => resolve();
    script.onerror = () => {
      plotlyLoading = null;
      reject(new Error("plotly.js did not load"));
    };
    script.src = element("plotly")?.getAttribute("href") ?? "/static/plotly.min.js";
    document.head.append(script);
  });
  return plotlyLoading;
}

export async function drawFigures() {
  const boxes = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[data-figure]")]);
  await Promise.all(boxes.map(drawFigure));
}

/** @param {HTMLElement} box */
async function drawFigure(box) {
  void plotlyReady().catch(() => undefined);
  const name = box.dataset.figure ?? "";
  const query = new URLSearchParams({ theme: themeNow() });
  if (name === "heatmap") {
    query.set("metric", metricNow());
    query.set("labels", box.clientWidth < NARROW ? "19" : "40");
  }
  const address = `/runs/${encodeURIComponent(runId)}/figures/${name}.json?${query}`;
  box.dataset.asked = address;
  try {
    const answer = await fetch(address, { cache: "no-cache" });
    if (!answer.ok) throw new Error(`${address} answered ${answer.status}`);
    const tag = `${address} ${answer.headers.get("ETag")}`;
    /** @type {Figure} */
    const figure = await answer.json();
    // A slower answer to an earlier question must not win over a newer one.
    if (box.dataset.asked !== address) return;
    box.classList.remove("old");
    if (drawn.get(name) === tag) return;
    await Promise.all([plotlyReady(), fontReady]);
    if (box.dataset.asked !== address) return;
    drawn.set(name, tag);
    await show(box, figure);
  } catch (error) {
    box.classList.add("old");
    drawn.delete(name);
    const loading = box.querySelector(".loading");
    if (loading) loading.textContent = "This figure could not be loaded. Trying again.";
    throw error;
  }
}

/**
 * @param {HTMLElement} box
 * @param {Figure} figure
 */
async function show(box, figure) {
  const meta = figure.layout.meta ?? {};
  box.setAttribute("aria-label", meta.description ?? "");
  if (meta.empty) {
    if (box.classList.contains("js-plotly-plot")) plotly().purge(box);
    const blank = document.createElement("p");
    blank.className = "blank";
    blank.textContent = meta.empty;
    box.replaceChildren(blank);
    return;
  }
  if (!box.classList.contains("js-plotly-plot")) box.replaceChildren();
  const touch = matchMedia("(pointer: coarse)").matches;
  box.classList.toggle("touch", touch);
  if (touch) figure.layout.dragmode = false;
  whole.set(box.id, ranges(figure.layout));
  figure.layout.xaxis.range = rangeNow("steps") ?? figure.layout.xaxis.range;
  const rows = figure.layout.yaxis2 && rangeNow("rows");
  if (rows) figure.layout.yaxis.range = figure.layout.yaxis2.range = rowRange(rows);
  await plotly().react(box, figure.data, figure.layout, {
    displayModeBar: false,
    responsive: true,
    doubleClick: false,
    showTips: false,
  });
  box.dataset.drawn = String(Number(box.dataset.drawn ?? "0") + 1);
  if (!box.dataset.listening) {
    box.dataset.listening = "yes";
    /** @type {any} */ (box).on("plotly_relayout", (/** @type {Record<string, any>} */ change) => zoomed(box, change));
    /** @type {any} */ (box).on("plotly_doubleclick", () => void showAll());
  }
}

/** @param {Record<string, any>} layout */
function ranges(layout) {
  const axes = ["xaxis", "yaxis", "yaxis2"].filter((name) => layout[name]);
  // Plotly writes a drag into the very array it was given, hence the copy.
  return Object.fromEntries(axes.map((name) => [`${name}.range`, [...layout[name].range]]));
}

/** @param {[number, number]} rows the first and the last row; rows are counted from the top */
const rowRange = ([first, last]) => [last + 0.5, first - 0.5];

/**
 * @param {HTMLElement} box
 * @param {Record<string, any>} change what Plotly says has moved
 */
function zoomed(box, change) {
  if (applyingZoom) return;
  const [low, high] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  const [bottom, top] = [change["yaxis.range[0]"], change["yaxis.range[1]"]];
  if (box.dataset.figure === "heatmap" && typeof top === "number") {
    const [first, last] = [Math.max(0, Math.round(top + 0.5)), Math.round(bottom - 0.5)];
    setState({ rows: first < last ? `${first}-${last}` : null });
  }
  if (typeof low === "number") {
    const [first, last] = [Math.max(0, Math.round(low)), Math.round(high)];
    setState({ steps: first < last ? `${first}-${last}` : null });
  }
  void zoom();
}

async function showAll() {
  setState({ steps: null, rows: null });
  await zoom();
}

/** One step axis everywhere: what the address says, all figures show. */
async function zoom() {
  showReset();
  const [steps, rows] = [rangeNow("steps"), rangeNow("rows")];
  applyingZoom = true;
  try {
    for (const box of document.querySelectorAll(".js-plotly-plot")) {
      const change = structuredClone(whole.get(box.id) ?? {});
      if (steps) change["xaxis.range"] = steps;
      if (rows && "yaxis2.range" in change) change["yaxis.range"] = change["yaxis2.range"] = rowRange(rows);
      await plotly().relayout(box, change);
    }
  } finally {
    applyingZoom = false;
  }
}

function showReset() {
  const button = element("reset-zoom");
  if (button) button.hidden = rangeNow("steps") === null && rangeNow("rows") === null;
}

/** @param {() => void} again called when a figure could not be loaded */
export function startFigures(again) {
  showReset();
  element("reset-zoom")?.addEventListener("click", () => void showAll());
  element("metric-switch")?.addEventListener("click", (event) => {
    const link = /** @type {HTMLElement} */ (event.target).closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    for (const other of element("metric-switch")?.querySelectorAll("a") ?? []) other.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
    const metric = link.dataset.metric ?? "lost";
    for (const text of document.querySelectorAll(".explain")) {
      /** @type {HTMLElement} */ (text).hidden = /** @type {HTMLElement} */ (text).dataset.metric !== metric;
    }
    setState({ metric: metric === "lost" ? null : metric });
    const box = element("figure-heatmap");
    if (box) void drawFigure(box).catch(again);
  });
}
