// Actions that are sent once the gateway can be reached.
//
// Each action is one entry of the storage, so that two tabs do not overwrite each other's. It gets its idempotency key when it is
// added, and is removed after the response. If the page ends in between, the next one sends it again with the same key.

import { changes } from "./calls.js";
import { Emitter, emit } from "./emitter.js";
import { PlayhouseError, QueueFullError, SignedOutError } from "./errors.js";
import { delay, isTransient, repeatability } from "./retry.js";
import { Scope, duration, sleep } from "./time.js";
import { newKey } from "./transport.js";

const MAX = 100;
const EXPIRES_IN = 24 * 60 * 60 * 1000;
const LONGEST_WAIT = 30_000;

export class OfflineQueue extends Emitter {
  #client;
  #transport;
  #storage;
  #max;
  #expiresIn;
  #prefix;
  #lastTime = 0;
  // The run in progress, whether another one was wanted meanwhile, and what ends the wait before the next one.
  #running;
  #isWantedAgain = false;
  #retry;
  #failures = 0;
  #size = 0;

  constructor(client, storage, { max = MAX, expiresIn = EXPIRES_IN } = {}) {
    super();
    const isCount = max === Infinity || (Number.isInteger(max) && max > 0);
    if (!isCount) throw new RangeError("`queue.max` must be a whole number above 0, or Infinity.");
    this.#client = client;
    this.#transport = client.transport;
    this.#storage = storage;
    this.#max = max;
    this.#expiresIn = duration("queue.expiresIn", expiresIn);
    this.#prefix = `playhouse:${client.transport.baseUrl}:`;
    this.#size = this.size;
    this.#listen("online", () => this.#start());
    // Another tab has added or sent an action.
    this.#listen("storage", () => this.#reportSize());
    // Actions of an earlier page.
    if (this.#size) queueMicrotask(() => this.#start());
  }

  // Listens to an event of the browser until the client is closed.
  #listen(name, listener) {
    globalThis.addEventListener?.(name, listener);
    const stop = () => globalThis.removeEventListener?.(name, listener);
    this.#transport.signal.addEventListener("abort", stop, { once: true });
  }

  get size() {
    return this.items().length;
  }

  add(what, ...rest) {
    const isNamed = typeof what === "string";
    const [args, options = {}] = isNamed ? [rest[0] ?? [], rest[1]] : [undefined, rest[0]];
    if (isNamed && !Object.hasOwn(changes, what)) throw new TypeError(`\`${what}\` cannot be queued.`);
    const { method, path, query, body } = isNamed ? changes[what](...args) : what;
    if (this.size >= this.#max) throw new QueueFullError(`The queue has ${this.#max} actions already.`);
    const now = this.#transport.localNow();
    const expiresIn = duration("expiresIn", options.expiresIn ?? this.#expiresIn);
    // The storage sorts by id. The clock may stand still or be set back.
    this.#lastTime = Math.max(now, this.#lastTime + 1);
    const key = options.idempotencyKey ?? newKey();
    const action = {
      id: `${String(this.#lastTime).padStart(15, "0")}-${key.slice(0, 8)}`,
      key,
      name: isNamed ? what : undefined,
      method: method.toUpperCase(),
      path,
      query,
      body,
      addedAt: now,
      // JSON has no infinity. An action without this time does not expire.
      expiresAt: expiresIn === Infinity ? undefined : now + expiresIn,
      userId: this.#userId(),
    };
    try {
      this.#storage.setItem(`${this.#prefix}queue:${action.id}`, JSON.stringify(action));
    } catch (cause) {
      throw new PlayhouseError("The action could not be stored.", { cause });
    }
    this.#reportSize();
    this.#start();
    return action;
  }

  items() {
    const userId = this.#userId();
    return this.#stored().filter((action) => !action.userId || !userId || action.userId === userId);
  }

  remove(id) {
    const key = `${this.#prefix}queue:${id}`;
    const isWaiting = this.#storage.getItem(key) !== null;
    this.#storage.removeItem(key);
    this.#reportSize();
    return isWaiting;
  }

  async flush() {
    await this.#start();
  }

  // Remembers who is signed in, for actions that are added while that cannot be asked.
  remember(userId) {
    if (!userId || userId === this.#userId()) return;
    this.#storage.setItem(`${this.#prefix}user`, userId);
    this.#reportSize();
  }

  #userId() {
    return this.#storage.getItem(`${this.#prefix}user`) ?? undefined;
  }

  #stored() {
    const keys = Array.from({ length: this.#storage.length }, (_, index) => this.#storage.key(index));
    const actions = keys.filter((key) => key?.startsWith(`${this.#prefix}queue:`)).sort().map((key) => {
      try {
        return JSON.parse(this.#storage.getItem(key));
      } catch {
        this.#storage.removeItem(key);
        return null;
      }
    });
    return actions.filter(Boolean);
  }

  #reportSize() {
    const size = this.size;
    if (size === this.#size) return;
    this.#size = size;
    emit(this, "size", size);
  }

  // Starts a run now. If one is in progress, another one follows it, because it may have seen the last action already.
  #start() {
    if (this.#transport.signal.aborted) return undefined;
    this.#retry?.abort();
    if (this.#running) this.#isWantedAgain = true;
    this.#running ??= this.#run().then(() => {
      this.#running = undefined;
      const isWanted = this.#isWantedAgain;
      this.#isWantedAgain = false;
      return isWanted ? this.#start() : undefined;
    });
    return this.#running;
  }

  // Sends waiting actions, the oldest first. Plans another run if the gateway cannot be reached.
  async #run() {
    // The caller adds its handlers first.
    await Promise.resolve();
    try {
      await this.#exclusively(() => this.#sendAll());
      this.#failures = 0;
    } catch (error) {
      if (this.#transport.signal.aborted || error instanceof SignedOutError) return;
      this.#failures += 1;
      this.#retryAfter(delay(this.#failures, error, this.#transport.random, LONGEST_WAIT));
    }
  }

  async #retryAfter(milliseconds) {
    const scope = (this.#retry = new Scope(this.#transport.signal));
    const isDue = await sleep(milliseconds, scope.signal).then(() => true, () => false);
    scope.end();
    if (isDue) this.#start();
  }

  // Runs `work` in one tab at a time. Without locks, the keys alone keep actions from being applied twice.
  async #exclusively(work) {
    const locks = globalThis.navigator?.locks;
    if (!locks) return work();
    return locks.request(`${this.#prefix}queue`, { signal: this.#transport.signal }, work);
  }

  async #sendAll() {
    this.#expire();
    if (!this.size) return;
    // This call also shows whether the gateway can be reached. An action of another player stays.
    await this.#client.me();
    for (let action; (action = this.items()[0]); ) {
      await this.#send(action);
      this.#expire();
    }
  }

  async #send(action) {
    const { method, path, query, body, key } = action;
    try {
      const result = await this.#client.request(method, path, { query, body, idempotencyKey: key });
      this.remove(action.id);
      emit(this, "sent", { action, result });
    } catch (error) {
      const isFinal = error instanceof PlayhouseError && !(error instanceof SignedOutError) && !this.#transport.signal.aborted;
      if (!isFinal || isTransient(error, repeatability(method, path, true))) throw error;
      this.remove(action.id);
      emit(this, "failed", { action, error });
    }
  }

  // Removes what is too old, also of other players.
  #expire() {
    const now = this.#transport.localNow();
    const own = new Set(this.items().map(({ id }) => id));
    for (const action of this.#stored().filter(({ expiresAt }) => expiresAt <= now)) {
      this.remove(action.id);
      if (own.has(action.id)) emit(this, "expired", { action });
    }
  }
}
