// @ts-check
/** The parts of a page that are replaced when they are new. */

import { body, element } from "./address.js";

/** Replaces every live element whose content is new; what did not change keeps focus, selection and folds. */
export async function refreshPart() {
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
export function tickAges() {
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
