// The console's script. Everything here is an addition: the pages work without it.

import { offerCopies, openDialogs } from "./dialog.js";
import { keepLive } from "./live.js";
import { keepTimes } from "./times.js";

/** Takes tables that need no scrolling out of the tab order. */
function prepare(root) {
  for (const region of root.querySelectorAll(".scroll, pre.code")) {
    if (region.scrollWidth > region.clientWidth || region.scrollHeight > region.clientHeight) {
      region.tabIndex = 0;
    } else if (region !== document.activeElement && region.clientWidth) {
      region.removeAttribute("tabindex");
    }
  }
}

/** Opens the menu for good where it has its own column. */
function unfoldMenu() {
  const menu = document.querySelector("[data-menu]");
  const isWide = matchMedia("(min-width: 56rem)");
  const fit = () => { if (menu) menu.open = isWide.matches; };
  isWide.addEventListener("change", fit);
  fit();
}

/** Moves the focus to the search field on "/". */
function findOnSlash() {
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, textarea, select, dialog");
    const field = document.querySelector("[data-search]");
    if (event.key !== "/" || isTyping || !field || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    document.querySelector("[data-menu]").open = true;
    field.focus();
  });
}

unfoldMenu();
prepare(document);
offerCopies(document);
openDialogs();
findOnSlash();
keepTimes();
keepLive(prepare);
addEventListener("resize", () => prepare(document));
