// Helpers of all parts of the page: elements, errors in plain words, toasts.

import { DeadlineError, NetworkError, ProblemError, SignedOutError, isProblem } from "/assets/client/index.js";

const SVG = "http://www.w3.org/2000/svg";
// How long a toast is visible, in milliseconds, and how many are visible at a time.
const TOAST = 5000;
const TOASTS = 2;

export const $ = (id) => document.getElementById(id);

// Creates an element. `attributes` are properties; those with a hyphen, and `role`, are attributes.
export function element(name, attributes = {}, ...children) {
  const created = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.includes("-") || key === "role") created.setAttribute(key, value);
    else created[key] = value;
  }
  created.append(...children.filter((child) => child !== undefined && child !== null && child !== ""));
  return created;
}

export function icon(name, className = "icon") {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", className);
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

// Creates a button that is disabled while its action runs, and shows its error.
export function button(text, act, { kind = "", id = "" } = {}) {
  const created = element("button", { className: `button ${kind}`.trim(), textContent: text, id });
  created.onclick = async () => {
    created.disabled = true;
    await attempt(act);
    created.disabled = false;
  };
  return created;
}

// Runs an action and shows its error. Returns whether it succeeded.
export async function attempt(act) {
  showError("");
  try {
    await act();
    return true;
  } catch (error) {
    if (error instanceof SignedOutError) location.reload();
    else showError(explain(error));
    return false;
  }
}

export function showError(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

// Returns what went wrong and what the player can do, without words of the protocol.
export function explain(error) {
  if (error instanceof DeadlineError || error instanceof NetworkError) {
    return "The server cannot be reached. Check your connection, then try again.";
  }
  if (isProblem(error, "rate-limited")) return "That was a lot at once. Wait a moment, then try again.";
  if (isProblem(error, "parties:wrong-code")) return "No party has this code. Ask your friend for the current one.";
  if (isProblem(error, "parties:in-another-party")) return "You are in another party. Leave it first.";
  if (isProblem(error, "parties:party-full")) return "This party is full.";
  if (isProblem(error, "parties:party-queued")) return "This party is looking for a match. Join when it has stopped.";
  if (isProblem(error, "parties:party-too-large")) return "Only two can play. Somebody has to leave the party.";
  if (isProblem(error, "parties:member-waits-elsewhere")) return "One of you is looking for an opponent alone. Cancel that first.";
  if (isProblem(error, "no-ready-check")) return "Too late: the question is no longer open.";
  if (isProblem(error, "drops:sold-out")) return "Sold out for now. Units come back if a reservation ends.";
  if (isProblem(error, "drops:over-limit")) return "You already have as many as one player may buy.";
  if (isProblem(error, "drops:admission-ended")) return "Your turn has ended. Join the line again.";
  if (error instanceof ProblemError && error.status >= 500) {
    return "The server has a problem. Nothing was lost; try again in a moment.";
  }
  return error.message;
}

// Shows a message for a few seconds. Screen readers announce it.
export function toast(text, name) {
  const shown = element("div", { className: "toast" }, name && icon(name), element("span", { textContent: text }));
  $("toasts").append(shown);
  if ($("toasts").childElementCount > TOASTS) $("toasts").firstElementChild.remove();
  setTimeout(() => shown.remove(), TOAST);
}

// Formats seconds as 0:07, 12:30 or 1:02:03.
export function duration(seconds) {
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

export const clock = (time) => new Date(time).toLocaleTimeString([], { timeStyle: "short" });

// Formats an amount in minor units.
export function money(amount, currency) {
  const format = new Intl.NumberFormat(undefined, { style: "currency", currency });
  return format.format(amount / 10 ** format.resolvedOptions().maximumFractionDigits);
}

// Returns the name of a resource for people: "skin:gold" is "Skin gold".
export function nameOf(resource) {
  const words = resource.replace(/[:_-]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

export function iconOf(resource) {
  if (resource.includes("trophy")) return "trophy";
  return resource.includes("hat") ? "hat" : "gem";
}
