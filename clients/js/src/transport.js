// Sends requests: credentials, deadlines, retries, errors.

import { CancelledError, DeadlineError, NetworkError, ProblemError, SignedOutError, problemOf } from "./errors.js";
import { delay, repeatability, shouldRetry } from "./retry.js";
import { Scope, ServerClock, duration, sleep } from "./time.js";

const DEADLINE = 30_000;
// Longer than `gateway.request_timeout`, so that a slow gateway answers 504 first.
const ATTEMPT_TIMEOUT = 12_000;

export class Transport {
  #options;
  #deadline;
  #closing = new AbortController();
  #clock;

  constructor(options) {
    const base = options.baseUrl ?? globalThis.location?.origin;
    if (!base) throw new TypeError("`baseUrl` is required outside of browsers.");
    this.baseUrl = base.replace(/\/+$/, "");
    this.random = options.random ?? Math.random;
    this.fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
    this.auth = options.auth;
    this.#options = options;
    this.#deadline = duration("deadline", options.deadline ?? DEADLINE);
    this.attemptTimeout = duration("attemptTimeout", options.attemptTimeout ?? ATTEMPT_TIMEOUT);
    this.#clock = new ServerClock(options.now ?? Date.now);
  }

  // Aborted when the client is closed.
  get signal() {
    return this.#closing.signal;
  }

  serverNow = () => this.#clock.now();

  localNow() {
    return this.#clock.local();
  }

  close() {
    this.#closing.abort(new CancelledError("The client was closed."));
  }

  // Sends a request until it is answered, refused, or its deadline passes. Returns the parsed body.
  async request(method, path, options = {}) {
    const hasOwnKey = options.idempotencyKey !== undefined;
    const rule = repeatability(method, path, hasOwnKey);
    const key = options.idempotencyKey ?? (method === "POST" || method === "PATCH" ? newKey() : undefined);
    const startedAt = performance.now();
    const deadline = duration("deadline", options.deadline ?? this.#deadline);
    const scope = this.#scope(options.signal);
    let last;
    scope.timeout(deadline, () => new DeadlineError(`No answer within ${deadline} ms.`, { cause: last }));
    try {
      for (let attempt = 0; ; attempt += 1) {
        try {
          return await this.#attempt(method, path, { ...options, key, signal: scope.signal });
        } catch (error) {
          last = error;
          if (options.isSingle || !(error.isUnsent || shouldRetry(error, rule))) throw error;
          const wait = delay(attempt, error, this.random);
          if (performance.now() - startedAt + wait > deadline) throw error;
          await sleep(wait, scope.signal);
        }
      }
    } finally {
      scope.end();
    }
  }

  // Sends a request once and returns the response with its body unread, for streams. `signal` ends both.
  async open(path, { query, headers, signal }) {
    const { response, credential } = await this.#send("GET", path, { query, headers, signal });
    if (!response.ok) throw await problemOf(response, this.serverNow());
    return { response, credential };
  }

  // Replaces credentials that the server has called expired. Returns whether there are new ones.
  renew(credential, signal) {
    return this.#recover(credential, undefined, signal);
  }

  #scope(signal) {
    if (signal?.aborted) throw cancelled(signal.reason);
    const scope = new Scope(this.signal);
    if (!signal) return scope;
    const follow = () => scope.abort(cancelled(signal.reason));
    signal.addEventListener("abort", follow, { once: true });
    const end = scope.end.bind(scope);
    scope.end = () => {
      signal.removeEventListener("abort", follow);
      end();
    };
    return scope;
  }

  async #attempt(method, path, options) {
    const scope = new Scope(options.signal);
    const timeout = duration("attemptTimeout", options.attemptTimeout ?? this.attemptTimeout);
    scope.timeout(timeout, () => new NetworkError(`No answer within ${timeout} ms.`));
    try {
      const { response } = await this.#send(method, path, { ...options, signal: scope.signal });
      if (!response.ok) throw await problemOf(response, this.serverNow());
      return await this.#read(response, scope.signal);
    } finally {
      scope.end();
    }
  }

  async #read(response, signal) {
    try {
      if (response.status === 204) return null;
      const text = await response.text();
      const isJson = (response.headers.get("content-type") ?? "").includes("json");
      return isJson ? JSON.parse(text) : text;
    } catch (cause) {
      throw networkError(cause, signal);
    }
  }

  // Sends a request with the player's credentials. Repeats it once with new ones if they are refused.
  async #send(method, path, options) {
    const sent = await this.#sendOnce(method, path, options);
    if (sent.response.status !== 401) return sent;
    const problem = await problemOf(sent.response, this.serverNow());
    if (await this.#recover(sent.credential, problem, options.signal)) {
      const again = await this.#sendOnce(method, path, options);
      if (again.response.status !== 401) return again;
    }
    throw new SignedOutError(problem.detail, { code: problem.code, cause: problem });
  }

  async #recover(credential, cause, signal) {
    try {
      return await orAborted(this.auth.recover(credential, this), signal);
    } catch (error) {
      if (error instanceof SignedOutError) error.cause ??= cause;
      throw unsent(error);
    }
  }

  async #sendOnce(method, path, options) {
    const { query, body, key, signal } = options;
    const isChange = method !== "GET" && method !== "HEAD";
    const headers = { accept: "application/json", ...options.headers };
    const { platform, version, language } = this.#options;
    if (platform) headers["x-client-platform"] = platform;
    if (version) headers["x-client-version"] = version;
    if (language) headers["accept-language"] = language;
    if (body !== undefined) headers["content-type"] = "application/json";
    if (key) headers["idempotency-key"] = key;
    const credential = await this.#credential(headers, isChange, signal);
    const sentAt = this.localNow();
    let response;
    try {
      response = await this.fetch(this.url(path, query), {
        method,
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        credentials: this.auth.credentials,
        signal,
      });
    } catch (cause) {
      throw networkError(cause, signal);
    }
    this.#clock.learn(response, sentAt);
    return { response, credential };
  }

  async #credential(headers, isChange, signal) {
    try {
      const context = { fetch: this.fetch, serverNow: this.serverNow, signal: this.signal, isChange };
      // A refresh is shared by all calls. One that is cancelled stops waiting for it and does not cancel it.
      return await orAborted(this.auth.apply(headers, context), signal);
    } catch (error) {
      throw unsent(error);
    }
  }

  url(path, query = {}) {
    const url = new URL(this.baseUrl + path);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined && value !== null) url.searchParams.set(name, value);
    }
    return url.href;
  }
}

// Marks an error of the credentials. The request was not sent or was refused, so any request may be repeated.
function unsent(error) {
  if (error instanceof NetworkError) error.isUnsent = true;
  return error;
}

// Returns a random idempotency key. `crypto.randomUUID` is missing on pages without TLS.
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Waits for a promise, but no longer than until `signal` is aborted.
function orAborted(promise, signal) {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason);
    const cancel = () => reject(signal.reason);
    signal.addEventListener("abort", cancel, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", cancel));
  });
}

function cancelled(cause) {
  return cause instanceof CancelledError ? cause : new CancelledError("The call was cancelled.", { cause });
}

// Returns the error of a failed `fetch`: the reason of the signal if that is why it failed.
function networkError(cause, signal) {
  if (signal.aborted) return signal.reason;
  return cause instanceof ProblemError ? cause : new NetworkError("The gateway could not be reached.", { cause });
}
