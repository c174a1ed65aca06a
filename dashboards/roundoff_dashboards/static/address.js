// @ts-check
/** Where the page is: what the server wrote on its body, and the state that lives in the address. */

export const body = document.body;
export const page = body.dataset.page ?? "none";
export const runId = body.dataset.run ?? "";

/** @param {string} id */
export const element = (id) => document.getElementById(id);

/**
 * @param {"steps" | "rows"} name
 * @returns {[number, number] | null} the range that the address asks for
 */
export function rangeNow(name) {
  const found = /^(\d{1,12})-(\d{1,12})$/.exec(new URLSearchParams(location.search).get(name) ?? "");
  return found && Number(found[1]) < Number(found[2]) ? [Number(found[1]), Number(found[2])] : null;
}

/** @param {Record<string, string | null>} changes */
export function setState(changes) {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") address.searchParams.delete(name);
    else address.searchParams.set(name, value);
  }
  history.replaceState(null, "", address);
}
