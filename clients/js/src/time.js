// Waiting that can be cancelled. Every timer of the client is one of these, so that none is left behind.

// The longest time of a timer. A longer one would fire at once.
const LONGEST_TIMER = 2 ** 31 - 1;

// Returns a number of milliseconds. Throws if it is none that something can take; `Infinity` is without an end.
export function duration(name, value) {
  if (typeof value === "number" && value > 0) return value;
  throw new RangeError(`\`${name}\` must be a number of milliseconds above 0, or Infinity.`);
}

// Waits for a number of milliseconds. Rejects with the reason of `signal` if that is aborted first.
export function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", cancel);
      resolve();
    }, Math.min(milliseconds, LONGEST_TIMER));
    const cancel = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    signal?.addEventListener("abort", cancel, { once: true });
  });
}

// An abort signal that follows other signals and a timer. `end` releases both; call it always.
export class Scope {
  #controller = new AbortController();
  #signals;
  #timer;
  #follow = (event) => this.abort(event.target.reason);

  constructor(...signals) {
    this.#signals = signals.filter(Boolean);
    for (const signal of this.#signals) {
      if (signal.aborted) this.abort(signal.reason);
      else signal.addEventListener("abort", this.#follow, { once: true });
    }
  }

  get signal() {
    return this.#controller.signal;
  }

  abort(reason) {
    this.#controller.abort(reason);
  }

  // Aborts with `reason()` after a number of milliseconds. Replaces the previous timer. What no timer can measure does not end.
  timeout(milliseconds, reason) {
    clearTimeout(this.#timer);
    if (milliseconds > LONGEST_TIMER) return;
    this.#timer = setTimeout(() => this.abort(reason()), milliseconds);
  }

  // Removes the timer.
  clearTimeout() {
    clearTimeout(this.#timer);
  }

  end() {
    this.clearTimeout();
    for (const signal of this.#signals) signal.removeEventListener("abort", this.#follow);
  }
}

// Estimates the server's time from the `Date` of its responses.
export class ServerClock {
  #offset = 0;

  constructor(now) {
    this.local = now;
  }

  now() {
    return this.local() + this.#offset;
  }

  // Learns from a response whose request was sent at this local time.
  learn(response, sentAt) {
    const date = Date.parse(response.headers.get("date") ?? "");
    if (Number.isNaN(date)) return;
    // The header has whole seconds, so the real time is half a second later on average. The server wrote it between the two times.
    const roundTrip = Math.max(0, this.local() - sentAt);
    const offset = date + 500 - (sentAt + roundTrip / 2);
    // A smaller difference is within what the header can tell. Then the local clock is the better one.
    this.#offset = Math.abs(offset) > 1000 + roundTrip / 2 ? offset : 0;
  }
}
