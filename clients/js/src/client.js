// The client: calls by name, the player's stream, the offline queue.

import { browserSession } from "./auth.js";
import { changes, reads } from "./calls.js";
import { DropStream } from "./drop-stream.js";
import { Live } from "./live.js";
import { OfflineQueue } from "./queue.js";
import { defaultStorage } from "./storage.js";
import { Transport } from "./transport.js";

const JOIN = /^POST \/v1\/drops\/([^/]+)\/join$/;

export class Playhouse {
  #live;
  // The streams of each drop, by its id as it is in a path.
  #followers = new Map();

  constructor(options = {}) {
    this.transport = new Transport({ ...options, auth: options.auth ?? browserSession() });
    for (const name of [...Object.keys(reads), ...Object.keys(changes)]) this.#define(name);
    this.queue = new OfflineQueue(this, options.storage ?? defaultStorage(), options.queue);
    this.drops.follow = (dropId, options) => this.#follow(dropId, options);
  }

  // Adds the method `name`, or `group.name`, whose last argument has the options of the call.
  #define(name) {
    const build = reads[name] ?? changes[name];
    const [group, method] = name.includes(".") ? name.split(".") : [undefined, name];
    const owner = group ? (this[group] ??= {}) : this;
    owner[method] = async (...args) => {
      const options = args[build.length];
      const { method, path, query, body } = build(...args.slice(0, build.length));
      return this.request(method, path, { ...options, query, body, ...patience(query, options) });
    };
  }

  // Sends a request. Calls by name and the offline queue pass here, too.
  async request(method, path, options) {
    const answer = await this.transport.request(method.toUpperCase(), path, options);
    this.#notice(`${method.toUpperCase()} ${path}`, answer);
    return answer;
  }

  // Remembers what other parts of the client need to know from a response.
  #notice(request, answer) {
    if (request === "GET /v1/me") this.queue.remember(answer?.user_id);
    if (request === "GET /v1/home") this.queue.remember(answer?.account.data?.user_id);
    // A stream has the places of players who had joined when it was opened.
    const joined = JOIN.exec(request)?.[1];
    for (const stream of this.#followers.get(joined) ?? []) stream.reconnect();
  }

  live(options) {
    // A stream that was closed just now has not ended yet.
    if (!this.#live || this.#live.state === "ended" || this.#live.signal.aborted) {
      const live = (this.#live = new Live(this, options));
      live.on("state", (state) => {
        if (state === "open" || state === "polling") this.queue.flush();
      });
    }
    return this.#live;
  }

  #follow(dropId, options) {
    const stream = new DropStream(this.transport, dropId, options);
    const id = encodeURIComponent(dropId);
    const streams = this.#followers.get(id) ?? new Set();
    this.#followers.set(id, streams.add(stream));
    stream.on("end", () => {
      streams.delete(stream);
      if (!streams.size) this.#followers.delete(id);
    });
    return stream;
  }

  serverNow() {
    return this.transport.serverNow();
  }

  close() {
    this.transport.close();
  }
}

// A long poll may take longer than other calls.
function patience(query, options) {
  const wait = Number(query?.wait ?? 0) * 1000;
  if (!wait) return {};
  return { attemptTimeout: wait + 12_000, deadline: options?.deadline ?? wait + 30_000 };
}
