// The player's stream: notifications, counts, tickets, the party, and the home screen that they belong to.
//
// After a reconnect the home screen has everything that is not on the stream. Missed notifications come first, then the home screen,
// then everything else, so that an older state never follows a newer one.

import { emit } from "./emitter.js";
import { LiveStream } from "./live-stream.js";

// How long a home screen counts as just loaded when the first stream opens, in milliseconds.
const FRESH = 5000;
// How long a long poll waits, in seconds.
const WAIT = 25;
const NO_PARTY = { party: null, invitations: [] };

export class Live extends LiveStream {
  #client;
  #home;
  // The position of the last notification that was delivered or is on the home screen.
  #position;
  #userId;
  // The known tickets, by id.
  #tickets = new Map();
  #party = NO_PARTY;
  #freshUntil = 0;
  // A home screen that waits for the notifications up to a position, with the events that wait for it.
  #held;
  // Whether the inbox was not available when the home screen was loaded.
  #lacksInbox = false;
  // The counts that the last long poll returned.
  #counts;
  // The digest of the counts, tickets and party that the last long poll returned.
  #seen;

  constructor(client, { transport, after } = {}) {
    super(client.transport, transport);
    this.#client = client;
    this.#position = after === undefined ? undefined : Number(after);
    this.run();
  }

  get home() {
    return this.#home;
  }

  get position() {
    return this.#position === undefined ? undefined : String(this.#position);
  }

  async prepare(signal) {
    if (this.#position !== undefined) return;
    const home = await this.#client.home({ signal });
    this.#startAt(home, undefined);
    this.#freshUntil = performance.now() + FRESH;
  }

  forget() {
    this.#position = this.#seen = this.#held = undefined;
    this.#freshUntil = 0;
  }

  streamRequest() {
    return { path: "/v1/stream", headers: this.#position === undefined ? {} : { "last-event-id": this.position } };
  }

  async handle(name, data, id, signal) {
    if (name === "ready") await this.#restore(data.resumed, Number(data.last_event_id), signal);
    else if (name === "notification") this.#onNotification(data);
    else if (name === "ticket" && this.#held) this.#held.tickets.push(data);
    else if (name === "ticket") this.#onTicket(data);
    else if (name === "party" && this.#held) this.#held.party = data;
    else if (name === "party") this.#onParty(data);
    else if (name === "inbox") {
      // The counts come after all missed notifications.
      this.#release();
      emit(this, "inbox", data);
    } else if (name === "heartbeat") {
      this.#release();
      if (this.#lacksInbox) this.#show(await this.#client.home({ signal }));
    }
  }

  async poll(signal) {
    const isFirst = this.state !== "polling";
    const query = { after: this.position, seen: isFirst ? undefined : this.#seen, wait: isFirst ? 0 : WAIT };
    const timeout = (isFirst ? 0 : WAIT * 1000) + this.transport.attemptTimeout;
    const limits = { isSingle: true, attemptTimeout: timeout, deadline: timeout + 1000 };
    const answer = await this.transport.request("GET", "/v1/events", { query, signal, ...limits });
    if (isFirst || !answer.resumed) await this.#restore(answer.resumed, Number(answer.last_event_id), signal);
    for (const notification of answer.notifications) this.#onNotification(notification);
    this.#release();
    this.#position = Math.max(this.#position, Number(answer.last_event_id));
    if (answer.inbox && !isSame(answer.inbox, this.#counts)) emit(this, "inbox", (this.#counts = answer.inbox));
    if (answer.tickets) {
      for (const ticket of answer.tickets) {
        if (!isSame(ticket, this.#tickets.get(ticket.ticket_id))) this.#onTicket(ticket);
      }
      this.#dropOthers(answer.tickets);
      const party = answer.party ?? NO_PARTY;
      if (!isSame(party, this.#party)) this.#onParty(party);
    }
    this.#seen = answer.seen;
  }

  // Brings the home screen up to date after the server continues at `start`, or after the position that the client sent (`isResumed`).
  async #restore(isResumed, start, signal) {
    const isFresh = performance.now() < this.#freshUntil;
    this.#freshUntil = 0;
    if (isResumed && isFresh) return;
    const home = await this.#client.home({ signal });
    const isOther = this.#userId !== undefined && this.#userId !== home.account.data?.user_id;
    if (!isResumed || isOther) return this.#startAt(home, start);
    const listed = positionOf(home);
    this.#held = undefined;
    if (listed > this.#position) this.#held = { home, upTo: listed, tickets: [] };
    else this.#show(home);
  }

  // Shows a home screen and continues after its notifications: those on it are not delivered again.
  #startAt(home, start) {
    this.#held = undefined;
    this.#position = positionOf(home) ?? start;
    this.#show(home);
  }

  #show(home) {
    this.#home = home;
    this.#userId = home.account.data?.user_id ?? this.#userId;
    this.#lacksInbox = positionOf(home) === undefined;
    emit(this, "home", home);
    this.#party = home.party?.data ?? this.#party;
    const tickets = home.matchmaking.data?.tickets;
    if (!tickets) return;
    this.#dropOthers(tickets);
    for (const ticket of tickets) this.#tickets.set(ticket.ticket_id, ticket);
  }

  // Shows the home screen that waited, and what came after it.
  #release() {
    const held = this.#held;
    if (!held) return;
    this.#held = undefined;
    this.#show(held.home);
    for (const ticket of held.tickets) this.#onTicket(ticket);
    if (held.party) this.#onParty(held.party);
  }

  #onNotification(notification) {
    if (notification.position <= this.#position) return;
    this.#position = notification.position;
    emit(this, "notification", notification);
    if (this.#held && notification.position >= this.#held.upTo) this.#release();
  }

  #onTicket(ticket) {
    if (ticket.state === "GONE") this.#tickets.delete(ticket.ticket_id);
    else this.#tickets.set(ticket.ticket_id, ticket);
    emit(this, "ticket", ticket);
  }

  #onParty(party) {
    this.#party = party;
    emit(this, "party", party);
  }

  // Reports known tickets that are not in this list as gone.
  #dropOthers(tickets) {
    const listed = new Set(tickets.map((ticket) => ticket.ticket_id));
    for (const ticket of [...this.#tickets.values()]) {
      if (!listed.has(ticket.ticket_id)) this.#onTicket({ ...ticket, state: "GONE" });
    }
  }
}

// Returns the position where a home screen's notifications end. Undefined if they are not available.
function positionOf(home) {
  const page = home.notifications.data;
  return page && Number(page.last_event_id);
}

// Compares two values of responses.
function isSame(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}
