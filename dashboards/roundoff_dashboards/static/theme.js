// @ts-check
/** Light or dark: the system's choice until the reader makes one, which a cookie remembers. */

import { element } from "./address.js";

const systemDark = matchMedia("(prefers-color-scheme: dark)");

/** @returns {"light" | "dark"} */
export function themeNow() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === "light" || chosen === "dark" ? chosen : systemDark.matches ? "dark" : "light";
}

/** @param {() => void} redraw */
export function startTheme(redraw) {
  const button = element("theme-toggle");
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themeNow() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    document.cookie = `roundoff_theme=${next}; path=/; max-age=31536000; samesite=lax`;
    redraw();
  });
  systemDark.addEventListener("change", redraw);
}
