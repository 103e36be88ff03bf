// The stock of a drop, and the player's place in its line.

import { emit } from "./emitter.js";
import { LiveStream } from "./live-stream.js";

// How long a long poll waits, in seconds. The place has no long poll of its own, so it is read more often.
const WAIT = 25;
const WAIT_WITH_PLACE = 3;

export class DropStream extends LiveStream {
  #path;
  #withPlace;
  #version;
  #place;

  constructor(transport, dropId, options = {}) {
    super(transport, options.transport);
    this.#path = `/v1/drops/${encodeURIComponent(dropId)}`;
    this.#withPlace = Boolean(options.place);
    this.run();
  }

  streamRequest() {
    return { path: `${this.#path}/stream`, query: this.#withPlace ? { place: true } : {} };
  }

  async handle(name, data) {
    if (name === "stock") this.#onStock(data);
    else if (name === "place") this.#onPlace(data);
  }

  async poll(signal) {
    const seconds = this.state !== "polling" ? 0 : this.#withPlace ? WAIT_WITH_PLACE : WAIT;
    const timeout = seconds * 1000 + this.transport.attemptTimeout;
    const options = { signal, isSingle: true, attemptTimeout: timeout, deadline: timeout + 1000 };
    const get = (path, query) => this.transport.request("GET", this.#path + path, { query, ...options });
    const [stock, place] = await Promise.all([
      get("/stock", { after: this.#version, wait: seconds }),
      this.#withPlace ? get("/place") : undefined,
    ]);
    this.#onStock(stock);
    if (place) this.#onPlace(place);
  }

  #onStock(stock) {
    if (stock.version <= this.#version) return;
    this.#version = stock.version;
    emit(this, "stock", stock);
  }

  #onPlace(place) {
    const text = JSON.stringify(place);
    if (text === this.#place) return;
    this.#place = text;
    emit(this, "place", place);
  }
}
