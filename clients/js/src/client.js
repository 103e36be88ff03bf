// The client: calls by name, the player's stream, the offline queue.

import { browserSession } from "./auth.js";
import { changes, reads } from "./calls.js";
import { DropStream } from "./drop-stream.js";
import { Live } from "./live.js";
import { OfflineQueue } from "./queue.js";
import { defaultStorage } from "./storage.js";
import { Transport } from "./transport.js";

export class Playhouse {
  #live;
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
      const answer = await this.transport.request(method, path, { ...options, query, body, ...patience(query, options) });
      this.#notice(name, answer, args[0]);
      return answer;
    };
  }

  // Remembers what other parts of the client need to know from a response.
  #notice(name, answer, dropId) {
    if (name === "me") this.queue.remember(answer.user_id);
    if (name === "home") this.queue.remember(answer.account.data?.user_id);
    // A stream has the places of players who had joined when it was opened.
    if (name === "drops.join") for (const stream of this.#followers.get(dropId) ?? []) stream.reconnect();
  }

  request(method, path, options) {
    return this.transport.request(method.toUpperCase(), path, options);
  }

  live(options) {
    if (!this.#live || this.#live.state === "ended") {
      const live = (this.#live = new Live(this, options));
      live.on("state", (state) => {
        if (state === "open" || state === "polling") this.queue.flush();
      });
    }
    return this.#live;
  }

  #follow(dropId, options) {
    const stream = new DropStream(this.transport, dropId, options);
    const streams = this.#followers.get(dropId) ?? new Set();
    this.#followers.set(dropId, streams.add(stream));
    stream.on("end", () => {
      streams.delete(stream);
      if (!streams.size) this.#followers.delete(dropId);
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
