// A stream that is kept open: connect, parse, notice silence, reconnect, fall back to long polls.
//
// A subclass names the stream (`streamRequest`), handles its events (`handle`), and has one step of the long poll (`poll`). It may
// `prepare` each connection, and must `forget` its position when the server continues as another player.

import { Emitter, emit } from "./emitter.js";
import { CancelledError, NetworkError, ProblemError, SignedOutError } from "./errors.js";
import { delay, isTransient } from "./retry.js";
import { EventParser } from "./sse.js";
import { Scope, sleep } from "./time.js";

// `gateway.stream_heartbeat`, where a page of another origin cannot read the header.
const DEFAULT_HEARTBEAT = 15_000;
// A connection is dead after this many heartbeats without a byte.
const SILENT_HEARTBEATS = 2.5;
const DEFAULT_RETRY = 500;
const LONGEST_WAIT = 15_000;
// After this many connections in a row without an event, try whether a long poll works.
const BARREN_LIMIT = 2;
// How long to poll before a stream is tried again. Doubled each time.
const FIRST_POLLING = 60_000;
const LONGEST_POLLING = 30 * 60_000;
// The shortest time between two long polls.
const POLL_PAUSE = 200;

export class LiveStream extends Emitter {
  #state = "connecting";
  #mode;
  #scope;
  // The scope of the current connection.
  #connection;
  // The delay before a reconnect that the server asked for.
  #retry = DEFAULT_RETRY;
  // The number of connections in a row that delivered no event.
  #barren = 0;
  #polling = { until: 0, length: FIRST_POLLING };
  #wake;

  constructor(transport, mode = "auto") {
    super();
    this.transport = transport;
    this.#mode = mode;
    this.#scope = new Scope(transport.signal);
  }

  get state() {
    return this.#state;
  }

  // Aborted when the stream is closed.
  get signal() {
    return this.#scope.signal;
  }

  close() {
    this.#scope.abort(new CancelledError("The stream was closed."));
  }

  // Drops the current connection and opens another one now.
  reconnect() {
    this.#connection?.abort(new Reconnect());
    this.#wake?.();
  }

  // Runs until the stream is closed or has ended. Subclasses call it once.
  async run() {
    // The caller adds its handlers first.
    await Promise.resolve();
    const online = () => this.#wake?.();
    globalThis.addEventListener?.("online", online);
    let end;
    for (let failures = 0; !end; ) {
      try {
        await this.#pause(await this.#connect());
        failures = 0;
      } catch (error) {
        end = this.#endOf(error);
        if (end) break;
        this.#setState("offline");
        failures += 1;
        await this.#pause(delay(failures, error, this.transport.random, LONGEST_WAIT));
      }
      if (this.signal.aborted) end = this.#endOf();
    }
    globalThis.removeEventListener?.("online", online);
    this.#scope.end();
    this.#setState("ended");
    emit(this, "end", end);
  }

  #setState(state) {
    if (this.#state === state) return;
    this.#state = state;
    emit(this, "state", state);
  }

  // Returns why the stream has ended, or undefined if it should connect again.
  #endOf(error) {
    if (this.signal.aborted) return { code: "closed", why: "the stream was closed" };
    if (error instanceof End) return { code: error.code, why: error.message };
    if (error instanceof SignedOutError) return { code: "signed_out", why: error.message };
    const isFinal = error instanceof ProblemError && error.status < 500 && !isTransient(error);
    return isFinal ? { code: error.code, why: error.message } : undefined;
  }

  // Waits, but not longer than until the browser is online again or `reconnect` is called.
  async #pause(milliseconds) {
    const scope = new Scope(this.signal);
    this.#wake = () => scope.abort();
    await sleep(milliseconds, scope.signal).catch(() => {});
    this.#wake = undefined;
    scope.end();
  }

  // Connects once, and stays connected as long as possible. Returns how long to wait before the next connection. Rejects if no
  // connection could be opened, or if there must be no other.
  async #connect() {
    const connection = (this.#connection = new Scope(this.signal));
    try {
      await this.prepare(connection.signal);
      if (this.#mode === "poll" || this.#polling.until > performance.now()) return await this.#pollOnce(connection);
      return await this.#stream(connection);
    } catch (error) {
      if (connection.signal.reason instanceof Reconnect) return 0;
      if (this.#mode === "auto" && this.#isBarren(error)) return await this.#startPolling();
      throw error;
    } finally {
      // Ends the request too.
      connection.abort(new CancelledError("The connection is over."));
      connection.end();
    }
  }

  // Counts connections without events. Returns whether it is time to try a long poll.
  #isBarren(error) {
    if (error instanceof NoStreaming) return true;
    if (!(error instanceof Barren)) return false;
    this.#barren += 1;
    return this.#barren >= BARREN_LIMIT;
  }

  // Polls instead of streaming. If that fails as well, the network is down, and streams may work.
  async #startPolling() {
    const connection = (this.#connection = new Scope(this.signal));
    try {
      const pause = await this.#pollOnce(connection);
      // The next stream gets one attempt, so that updates do not stop for long.
      this.#barren = BARREN_LIMIT - 1;
      this.#polling.until = performance.now() + this.#polling.length;
      this.#polling.length = Math.min(LONGEST_POLLING, this.#polling.length * 2);
      return pause;
    } finally {
      connection.end();
    }
  }

  async #pollOnce(connection) {
    await this.poll(connection.signal);
    this.#setState("polling");
    return POLL_PAUSE;
  }

  // Reads one connection until it ends.
  async #stream(connection) {
    const reading = { hasEvents: false };
    try {
      connection.timeout(this.transport.attemptTimeout, () => new Barren("The stream did not start in time."));
      const { path, query, headers } = this.streamRequest();
      const request = { query, headers: { accept: "text/event-stream", ...headers }, signal: connection.signal };
      const { response, credential } = await this.transport.open(path, request);
      const isStream = (response.headers.get("content-type") ?? "").startsWith("text/event-stream");
      if (!isStream || !response.body?.getReader) throw new NoStreaming("Streams do not work here.");
      reading.credential = credential;
      const heartbeat = Number(response.headers.get("x-playhouse-heartbeat")) || DEFAULT_HEARTBEAT;
      await this.#read(response.body.getReader(), heartbeat * SILENT_HEARTBEATS, connection, reading);
    } catch (error) {
      const cause = connection.signal.aborted ? connection.signal.reason : error;
      // A connection that was in use and broke is opened again, like one that the server has closed.
      const isOver = error instanceof Reconnect || (reading.hasEvents && cause instanceof NetworkError);
      if (!isOver) throw cause;
    }
    this.#setState("connecting");
    return this.#retry;
  }

  async #read(reader, silence, connection, reading) {
    const events = [];
    const parser = new EventParser({
      onEvent: (event) => events.push(event),
      onComment: () => events.push({ name: "heartbeat" }),
      onRetry: (milliseconds) => (this.#retry = milliseconds),
    });
    const silent = () => new (reading.hasEvents ? NetworkError : Barren)(`The stream was silent for ${silence} ms.`);
    for (;;) {
      const { done, value } = await reader.read().catch((cause) => {
        throw new NetworkError("The stream broke off.", { cause });
      });
      if (done) throw new NetworkError("The stream broke off.");
      parser.push(value);
      // Nobody reads while events are handled: that is not the server's silence.
      connection.clearTimeout();
      for (const event of events.splice(0)) await this.#handle(event, connection.signal, reading);
      connection.timeout(silence, silent);
    }
  }

  async #handle({ name, data, id }, signal, reading) {
    if (signal.aborted) throw signal.reason;
    if (name === "reconnect") throw new Reconnect();
    const value = data === undefined ? undefined : JSON.parse(data);
    if (name === "end") await this.#onEnd(value, reading.credential, signal);
    await this.handle(name, value, id, signal);
    if (name === "heartbeat") return;
    reading.hasEvents = true;
    this.#barren = 0;
    this.#polling.length = FIRST_POLLING;
    this.#setState("open");
  }

  // Throws what the code of an `end` asks for: another connection, or none. Unknown codes are like `signed_out`.
  async #onEnd({ code, why }, credential, signal) {
    if (code === "token_expired" && (await this.transport.renew(credential, signal))) throw new Reconnect();
    if (code !== "replaced") throw new End(code, why);
    this.forget();
    throw new Reconnect();
  }

  async prepare() {}

  forget() {}
}

// The server sent `end`, and there is no reason to connect again.
class End extends Error {
  constructor(code = "signed_out", why = "") {
    super(why);
    this.code = code;
  }
}

// The server or the caller asked for a new connection.
class Reconnect extends Error {}
// The response cannot be read as a stream here.
class NoStreaming extends NetworkError {}
// The connection delivered no event: a proxy may buffer streams.
class Barren extends NetworkError {}
