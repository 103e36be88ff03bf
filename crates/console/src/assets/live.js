// Keeps the sections of an open screen up to date.
//
// The server names the sections that changed. The page fetches what changed, with at most one request per second, and leaves a section
// alone while the operator uses it.

import { showTimes } from "./times.js";

const PAUSE = 1000;
const SECTIONS = "section[data-fragment]";

const here = () => location.pathname + location.search;
const find = (id, root = document) => root.querySelector(`section[data-fragment="${CSS.escape(id)}"]`);

/** Returns whether replacing a section would take something away from the operator. */
function isUsed(section) {
  const selection = getSelection();
  return section.contains(document.activeElement)
    || Boolean(document.querySelector("dialog[open]"))
    || Boolean(section.querySelector("details[open], input[type=checkbox]:checked"))
    || Boolean(selection && !selection.isCollapsed && selection.containsNode(section, true));
}

/** Fetches the page, or one section of it. */
async function fetchPage(id) {
  const url = new URL(here(), location.origin);
  if (id) url.searchParams.append("fragment", id);
  const response = await fetch(url, { headers: { accept: "text/html" } });
  // The session has ended, and the server leads to the sign-in: follow it with the whole page.
  if (response.redirected) location.reload();
  if (!response.ok || response.redirected) throw new Error(`${url}: ${response.status}`);
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

/** Starts live updates, if the page has them. `prepare` is called with each new section. */
export function keepLive(prepare) {
  const panel = document.querySelector("[data-live-state]");
  if (!panel || !("live" in document.body.dataset)) return;
  const [label, button] = [panel.querySelector(".live-state"), panel.querySelector("button")];
  // Sections that changed and are not shown yet.
  const waiting = new Set();
  let source = null;
  let state = "connecting";
  let isPaused = false;
  // Changes may have been missed, and all sections are compared.
  let isBehind = false;

  function show(next = state) {
    state = next;
    const isHeld = [...waiting].some((id) => find(id) && isUsed(find(id)));
    const texts = { connecting: "Connecting", live: "Live", paused: "Paused", reconnecting: "Reconnecting" };
    const text = state === "live" && isHeld ? "Live, update waits" : texts[state];
    if (label.textContent !== text) label.textContent = text;
    panel.dataset.state = state;
    panel.title = isHeld ? "A section that you are using is updated when you leave it." : "";
  }

  function connect() {
    if (source || isPaused || document.hidden) return;
    source = new EventSource(`/console/live?at=${encodeURIComponent(here())}`);
    source.addEventListener("open", () => show("live"));
    source.addEventListener("error", () => {
      isBehind = true;
      show("reconnecting");
      // The browser gives up after an answer that is not a stream, such as that of a server that is starting.
      if (source?.readyState === EventSource.CLOSED) {
        close();
        fetchPage().catch(() => {});
        setTimeout(connect, 5 * PAUSE);
      }
    });
    source.addEventListener("changed", (event) => {
      const { section, version } = JSON.parse(event.data);
      if (find(section)?.dataset.version !== version) waiting.add(section);
    });
  }

  function close() {
    source?.close();
    source = null;
    isBehind = true;
  }

  /** Replaces a section, unless it is in use or has not changed. */
  function replace(old, fresh) {
    const id = fresh.dataset.fragment;
    if (old.dataset.version === fresh.dataset.version) return waiting.delete(id);
    if (isUsed(old)) return waiting.add(id);
    waiting.delete(id);
    const adopted = document.adoptNode(fresh);
    showTimes(adopted);
    old.replaceWith(adopted);
    prepare(adopted);
  }

  /** Makes the sections of this page those of a fresh one. */
  function replaceAll(page) {
    const fresh = [...page.querySelectorAll(SECTIONS)];
    const ids = new Set(fresh.map((section) => section.dataset.fragment));
    for (const old of document.querySelectorAll(SECTIONS)) if (!ids.has(old.dataset.fragment) && !isUsed(old)) old.remove();
    let before = null;
    for (const section of fresh) {
      const id = section.dataset.fragment;
      const old = find(id);
      if (old) replace(old, section);
      else if (before) before.after(document.adoptNode(section));
      else document.querySelector("main").append(document.adoptNode(section));
      before = find(id);
    }
    for (const id of waiting) if (!ids.has(id)) waiting.delete(id);
    showTimes();
  }

  async function update() {
    const ready = [...waiting].filter((id) => !find(id) || !isUsed(find(id)));
    const [id] = ready;
    if (isBehind || ready.length > 1 || (id && !find(id))) {
      const page = await fetchPage();
      isBehind = false;
      replaceAll(page);
    } else if (id) {
      const fresh = find(id, await fetchPage(id));
      if (fresh && find(id)) replace(find(id), fresh);
      else waiting.delete(id);
    }
  }

  async function repeat() {
    if (state === "live" && !document.hidden) {
      // A request that fails is tried again: the stream breaks too if the server is away.
      await update().catch(() => {});
      show();
    }
    setTimeout(repeat, PAUSE);
  }

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.textContent = isPaused ? "Resume" : "Pause";
    show(isPaused ? "paused" : "connecting");
    if (isPaused) close(); else connect();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : connect()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && connect());

  panel.hidden = false;
  show();
  connect();
  repeat();
}
