// @ts-check
/**
 * What makes the pages live: the event stream with its fall-back, the parts that are replaced, the figures,
 * and the state that lives in the address. Without this script the pages still answer their question.
 */

/** @typedef {{data: object[], layout: Record<string, any>}} Figure */
/** @typedef {{run_id: string, kind: "run" | "samples" | "alert", step: number | null}} LiveEvent */

const EVENTS = "/api/v1/events";
const THROTTLE_MS = 500;
const POLL_MS = 3000;
const REOPEN_MS = 5000;
const NARROW = 560;


const body = document.body;
const page = body.dataset.page ?? "none";
const runId = body.dataset.run ?? "";

/** @param {string} id */
const element = (id) => document.getElementById(id);

/* ---------------------------------------------------------------- theme */

const systemDark = matchMedia("(prefers-color-scheme: dark)");

/** @returns {"light" | "dark"} */
function themeNow() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === "light" || chosen === "dark" ? chosen : systemDark.matches ? "dark" : "light";
}

function startTheme() {
  const button = element("theme-toggle");
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themeNow() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    document.cookie = `roundoff_theme=${next}; path=/; max-age=31536000; samesite=lax`;
    void drawFigures();
  });
  systemDark.addEventListener("change", () => void drawFigures());
}

/* ---------------------------------------------------------------- parts */

/** Replaces every live element whose content is new; what did not change keeps focus, selection and folds. */
async function refreshPart() {
  const part = body.dataset.part;
  if (!part) return;
  const answer = await fetch(part + location.search, { headers: { Accept: "text/html" }, cache: "no-cache" });
  // The run is gone, or the session is over: the page itself says so.
  if (answer.status === 404 || answer.redirected) return location.reload();
  if (!answer.ok) throw new Error(`${part} answered ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const verdict = element("verdict")?.textContent;
  for (const part of fresh.querySelectorAll("[data-live]")) {
    const old = element(part.id);
    if (old && !old.isEqualNode(part)) swap(old, document.importNode(part, true));
  }
  const now = element("verdict")?.textContent;
  const announcer = element("announcer");
  if (announcer && now && verdict !== now) announcer.textContent = now;
}

/**
 * @param {Element} old
 * @param {Element} fresh
 */
function swap(old, fresh) {
  const focused = old.contains(document.activeElement) ? document.activeElement?.getAttribute("href") : null;
  old.replaceWith(fresh);
  if (focused) {
    const same = [...fresh.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused);
    same?.focus({ preventScroll: true });
  }
}

/** Ages go on by themselves between two answers. */
function tickAges() {
  for (const time of document.querySelectorAll("time[data-age]")) {
    const moment = Date.parse(time.getAttribute("datetime") ?? "");
    if (Number.isNaN(moment)) continue;
    const text = age((Date.now() - moment) / 1000);
    if (time.textContent !== text) time.textContent = text;
  }
}

/** @param {number} elapsed seconds */
function age(elapsed) {
  const seconds = Math.max(0, Math.floor(elapsed));
  for (const [size, unit] of /** @type {[number, string][]} */ ([[86400, "d"], [3600, "h"], [60, "min"]])) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return `${seconds} s ago`;
}

/* -------------------------------------------------------------- figures */

/** @type {Map<string, string>} the answer's tag by what was asked, so that nothing is drawn twice */
const drawn = new Map();
/** @type {Map<string, any>} the ranges of a figure's axes before any zoom */
const whole = new Map();
let applyingZoom = false;

/**
 * @param {"steps" | "rows"} name
 * @returns {[number, number] | null} the range that the address asks for
 */
function rangeNow(name) {
  const found = /^(\d{1,12})-(\d{1,12})$/.exec(new URLSearchParams(location.search).get(name) ?? "");
  return found && Number(found[1]) < Number(found[2]) ? [Number(found[1]), Number(found[2])] : null;
}

function metricNow() {
  return element("metric-switch")?.querySelector("[aria-current]")?.getAttribute("data-metric") ?? "lost";
}

/** @param {Record<string, string | null>} changes */
function setState(changes) {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") address.searchParams.delete(name);
    else address.searchParams.set(name, value);
  }
  history.replaceState(null, "", address);
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

async function drawFigures() {
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

function startFigures() {
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
    if (box) void drawFigure(box).catch(() => live.touch());
  });
}

/* ----------------------------------------------------------------- live */

/** Refreshes at most every `THROTTLE_MS`, never two at once, and always once more after the last event. */
const live = {
  running: false,
  wanted: false,
  /** @type {number | undefined} */
  timer: undefined,
  last: -Infinity,

  touch() {
    this.wanted = true;
    if (this.running || this.timer !== undefined) return;
    const wait = Math.max(0, this.last + THROTTLE_MS - performance.now());
    this.timer = setTimeout(() => void this.refresh(), wait);
  },

  async refresh() {
    this.timer = undefined;
    this.running = true;
    this.wanted = false;
    try {
      await Promise.all([refreshPart(), page === "run" ? drawFigures() : null]);
      connection.answered(true);
    } catch {
      connection.answered(false);
    } finally {
      this.running = false;
      this.last = performance.now();
      if (this.wanted) this.touch();
    }
  },
};

/** @type {Record<string, [string, string]>} */
const MARKS = {
  live: ["live", "New data appears by itself"],
  polling: ["polling", "The live stream is interrupted; asking every 3 s"],
  reconnecting: ["reconnecting …", "The server does not answer; what you see is the last that arrived"],
};

const connection = {
  /** @type {EventSource | null} */
  stream: null,
  open: false,
  reachable: true,
  /** @type {number | undefined} */
  poll: undefined,
  /** @type {number | undefined} */
  reopen: undefined,

  start() {
    this.connect();
    this.poll = setInterval(() => {
      if (!this.open && !document.hidden) live.touch();
    }, POLL_MS);
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.resume()));
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => event.persisted && this.resume());
    addEventListener("online", () => this.resume());
  },

  connect() {
    this.close();
    const stream = new EventSource(EVENTS);
    this.stream = stream;
    stream.onopen = () => {
      const again = body.dataset.live !== undefined;
      this.open = true;
      this.say();
      if (again) live.touch();
    };
    stream.onmessage = (message) => this.hear(message.data);
    for (const kind of ["run", "samples", "alert"]) {
      stream.addEventListener(kind, (message) => this.hear(/** @type {MessageEvent} */ (message).data));
    }
    stream.onerror = () => {
      this.open = false;
      this.say();
      // A refused stream is not reopened by the browser; a broken one is, but may hang behind a proxy.
      if (this.reopen === undefined) {
        this.reopen = setTimeout(() => {
          this.reopen = undefined;
          if (!this.open && !document.hidden) this.connect();
        }, REOPEN_MS);
      }
    };
  },

  /** @param {string} data */
  hear(data) {
    this.open = true;
    /** @type {LiveEvent} */
    let event;
    try {
      event = JSON.parse(data);
    } catch {
      return;
    }
    if (page !== "run" || event.run_id === runId || event.kind === "alert") live.touch();
  },

  /** @param {boolean} well */
  answered(well) {
    this.reachable = well;
    this.say();
  },

  close() {
    this.stream?.close();
    this.stream = null;
    this.open = false;
  },

  resume() {
    if (this.stream === null || !this.open) this.connect();
    live.touch();
  },

  say() {
    const state = this.open && this.reachable ? "live" : this.reachable ? "polling" : "reconnecting";
    body.dataset.live = state;
    const mark = element("connection");
    if (!mark) return;
    const [word, sentence] = MARKS[state];
    if (mark.textContent !== word) mark.textContent = word;
    mark.title = sentence;
  },
};

/* -------------------------------------------------------------- filters */

function startFilters() {
  const form = /** @type {HTMLFormElement | null} */ (element("filters"));
  if (!form) return;
  /** @type {number | undefined} */
  let timer;
  const apply = () => {
    const entries = /** @type {[string, string][]} */ ([...new FormData(form).entries()]);
    setState({ cursor: null, ...Object.fromEntries(entries) });
    live.touch();
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(apply, 200);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
}

startTheme();
startFilters();
setInterval(tickAges, 1000);
if (page === "run") {
  startFigures();
  live.touch();
}
if (page !== "none") connection.start();
