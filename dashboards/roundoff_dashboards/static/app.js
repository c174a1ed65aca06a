// @ts-check
/** What makes the pages live. Without it they still answer their question. */

import { element, page, setState } from "./address.js";
import { drawFigures, startFigures } from "./figures.js";
import { connection, live } from "./live.js";
import { tickAges } from "./parts.js";
import { startTheme } from "./theme.js";

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

startTheme(() => void drawFigures().catch(() => live.touch()));
startFilters();
setInterval(tickAges, 1000);
if (page === "run") {
  startFigures(() => live.touch());
  live.touch();
}
if (page !== "none") connection.start();
