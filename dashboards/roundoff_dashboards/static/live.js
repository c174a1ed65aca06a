// @ts-check
/** The event stream with its fall-back, and how often a page asks for what is new. */

import { body, element, page, runId } from "./address.js";
import { drawFigures } from "./figures.js";
import { refreshPart } from "./parts.js";

/** @typedef {{run_id: string, kind: "run" | "samples" | "alert", step: number | null}} LiveEvent */

const EVENTS = "/api/v1/events";
const THROTTLE_MS = 500;
const POLL_MS = 3000;
const REOPEN_MS = 5000;

/**
 * Refreshes at most every `THROTTLE_MS`, never two at once, and always once more after the last event. What is due
 * while the tab is hidden waits until it is seen again.
 */
export const live = {
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
    if (document.hidden) return;
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

export const connection = {
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
