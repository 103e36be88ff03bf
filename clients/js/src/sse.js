// A parser of server-sent events, as the HTML standard defines them.

export class EventParser {
  #decoder = new TextDecoder();
  #rest = "";
  #skipLineFeed = false;
  #event = { id: undefined, name: "", data: [] };

  // `onEvent` gets `{ id, name, data }`; `onRetry` the milliseconds to wait before a reconnect; `onComment` is for heartbeats.
  constructor({ onEvent, onRetry, onComment }) {
    Object.assign(this, { onEvent, onRetry, onComment });
  }

  // Parses the next bytes. They may end anywhere, also within a character.
  push(bytes) {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    for (;;) {
      if (this.#skipLineFeed && this.#rest) {
        if (this.#rest[0] === "\n") this.#rest = this.#rest.slice(1);
        this.#skipLineFeed = false;
      }
      const end = this.#rest.search(/[\r\n]/);
      if (end < 0) return;
      const line = this.#rest.slice(0, end);
      this.#skipLineFeed = this.#rest[end] === "\r";
      this.#rest = this.#rest.slice(end + 1);
      this.#line(line);
    }
  }

  #line(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return this.onComment?.();
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#event.name = value;
    else if (field === "data") this.#event.data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#event.id = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.onRetry?.(Number(value));
  }

  #dispatch() {
    const { id, name, data } = this.#event;
    this.#event = { id: undefined, name: "", data: [] };
    if (data.length) this.onEvent({ id, name: name || "message", data: data.join("\n") });
  }
}
