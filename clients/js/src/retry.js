// What may be repeated, and when.

import { DeadlineError, NetworkError, ProblemError } from "./errors.js";

const FIRST_WAIT = 250;
const LONGEST_WAIT = 5000;
// Responses after which the same request may succeed. Proxies send 502.
const TRANSIENT = new Set([408, 502, 503, 504]);

// The POST routes whose repetition has no second effect. `keyed` ones take an idempotency key. The others set a state: joining a
// queue, a party or a line twice, marking, leaving and ordering a reservation again change nothing. Removing a member of a party is not
// listed: a repetition is refused, because the player is no longer a member. A test compares the list with the OpenAPI document.
export const REPEATABLE_POSTS = [
  { path: /^\/v1\/drops\/[^/]+\/reservations$/, keyed: true },
  { path: /^\/v1\/drops\/[^/]+\/(join|leave)$/ },
  { path: /^\/v1\/drops\/[^/]+\/reservations\/[^/]+\/pay$/ },
  { path: /^\/v1\/matchmaking\/tickets$/ },
  { path: /^\/v1\/matchmaking\/tickets\/[^/]+\/(accept|decline)$/ },
  { path: /^\/v1\/notifications\/mark$/ },
  { path: /^\/v1\/parties(\/(join|invitations|leave|leader|member|ticket))?$/ },
  { path: /^\/v1\/parties\/invitations\/[^/]+\/(accept|decline)$/ },
];

// Returns whether a request may be repeated without knowing whether it was applied, and whether its route takes a key.
export function repeatability(method, path, hasOwnKey) {
  if (method !== "POST" && method !== "PATCH") return { isRepeatable: true, isKeyed: false };
  const known = method === "POST" && REPEATABLE_POSTS.find((route) => route.path.test(path));
  return { isRepeatable: Boolean(known) || hasOwnKey, isKeyed: Boolean(known?.keyed) };
}

// Returns whether to repeat a request after this error.
export function shouldRetry(error, { isRepeatable, isKeyed }) {
  if (error instanceof NetworkError) return isRepeatable;
  if (!(error instanceof ProblemError)) return false;
  // Refused before anything was done.
  if (error.status === 429) return true;
  if (isBeingApplied(error, isKeyed)) return true;
  return isRepeatable && TRANSIENT.has(error.status);
}

// Returns whether a keyed request was refused because its first attempt is still being applied under the same key.
function isBeingApplied(error, isKeyed) {
  return isKeyed && error.code === "conflict";
}

// Returns whether an error may be gone by itself later: the gateway cannot be reached or is busy.
export function isTransient(error, { isKeyed } = {}) {
  if (error instanceof NetworkError || error instanceof DeadlineError || isBeingApplied(error, isKeyed)) return true;
  return error instanceof ProblemError && (error.status === 429 || TRANSIENT.has(error.status));
}

// Returns how long to wait before the next attempt: what the server asks for and a random addition, or a random time that grows.
export function delay(attempt, error, random, longest = LONGEST_WAIT) {
  const asked = error?.retryAfter;
  if (asked !== undefined) return asked + random() * Math.max(FIRST_WAIT, asked / 4);
  const most = Math.min(longest, FIRST_WAIT * 2 ** attempt);
  return most / 4 + random() * (most * 3) / 4;
}
