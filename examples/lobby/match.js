// Finding a match and playing it.
//
// The ticket says where the player stands: none, waiting, asked whether they are ready, or assigned to a game server. The assignment is kept
// in the storage of the browser, because the game outlasts its ticket: a page that is loaded again in the middle of a game goes back to it.

import { Arena } from "./arena.js";
import { $, attempt, button, duration, element, icon } from "./page.js";
import { Party } from "./party.js";

const STORED = "lobby.match";
// How often a waiting ticket is read again for its estimate, in milliseconds.
const ESTIMATE_AGAIN = 10_000;

// Why a ticket is gone, or waits again.
const REASONS = {
  cancelled: "You are no longer waiting.",
  declined: "The match was declined, so you are no longer waiting.",
  "no-answer": "Not everybody answered in time, so you are no longer waiting.",
  expired: "Nobody was found. Try again.",
  "not-everyone-accepted": "The other player was not ready. You keep your place.",
};

export class Match {
  #client;
  #userId;
  // Where friends start a match. Missing where the server has no queue for that.
  #party;
  // The newest ticket.
  #ticket;
  #arena;
  #timer;
  // What the stage shows, so that an update does not replace a button under the finger.
  #shown;

  constructor(client, userId, party) {
    this.#client = client;
    this.#userId = userId;
    this.#party = party;
    if (this.#entered && !this.#entered.isLeft) this.#enter();
    else this.#showIdle();
  }

  // Shows the tickets of the home screen.
  show(tickets) {
    const [newest] = [...tickets].sort((one, other) => (one.created_at < other.created_at ? 1 : -1));
    if (newest) this.onTicket(newest);
    else if (this.#isOpen) this.onTicket({ ...this.#ticket, state: "GONE" });
  }

  // Whether a match may still come of the ticket.
  get #isOpen() {
    return this.#ticket?.state === "WAITING" || this.#ticket?.state === "READY_CHECK";
  }

  // Shows the response to a request for a match. The stream may have reported a later state of the ticket before.
  onQueued(ticket) {
    if (ticket.ticket_id !== this.#ticket?.ticket_id) this.onTicket(ticket);
  }

  onTicket(ticket) {
    // An earlier ticket, or an outdated state of this one.
    if (ticket.created_at < this.#ticket?.created_at) return;
    const isSame = ticket.ticket_id === this.#ticket?.ticket_id;
    if (isSame && !this.#isOpen && ticket.state !== this.#ticket.state) return;
    this.#ticket = ticket;
    this.#party?.remember(ticket);
    if (ticket.state === "WAITING") {
      this.#leaveArena();
      this.#showWaiting(ticket);
    } else if (ticket.state === "READY_CHECK") {
      this.#leaveArena();
      this.#showReadyCheck(ticket);
    } else if (ticket.state === "ASSIGNED") {
      this.#onAssigned(ticket);
    } else if (!this.#arena) {
      this.#showIdle(REASONS[ticket.reason] ?? REASONS.cancelled);
    }
  }

  #onAssigned({ ticket_id, queue, assignment: { connection, extensions } }) {
    const token = extensions?.token?.value;
    // The player is there already, or has left: the ticket can be read for a while after the match.
    if (this.#entered?.ticketId === ticket_id) return;
    if (!token) return this.#showIdle(`Your match is at ${connection}. This page cannot play there.`);
    this.#remember({ ticketId: ticket_id, queue, connection, token });
    this.#enter();
  }

  #enter() {
    this.#leaveArena();
    this.#show("arena");
    const { isOver } = this.#entered;
    this.#arena = new Arena($("stage"), this.#entered, {
      over: () => this.#remember({ isOver: true }),
      gone: () => this.#exit(isOver ? "" : "This match no longer exists. Find a new one."),
      again: () => this.#again(),
      leave: () => this.#exit(),
    });
  }

  #exit(why) {
    this.#remember({ isLeft: true });
    this.#leaveArena();
    this.#showIdle(why);
  }

  #leaveArena() {
    this.#arena?.close();
    this.#arena = undefined;
  }

  #showIdle(why = "") {
    const note = element("p", { id: "match-note", className: "hint", role: "status", textContent: why });
    this.#show(
      "idle",
      element("div", { className: "lamp" }, icon("bolt")),
      element("p", { className: "lead", textContent: "Two players, one light. Press when it turns green. Three points win." }),
      button("Find a match", () => this.#find(), { kind: "large", id: "find" }),
      note,
    );
  }

  #showWaiting(ticket) {
    if (this.#shown !== "waiting") {
      const isParty = Party.isQueue(ticket.queue);
      this.#show(
        "waiting",
        element("div", { className: "lamp beating" }, icon("bolt")),
        element("p", { id: "searching", className: "searching", role: "status", textContent: isParty ? "Opening your match" : "Looking for an opponent" }),
        element("p", { id: "waited", className: "clock", role: "timer" }),
        element("p", { id: "why", className: "hint" }),
        button("Cancel", () => this.#client.tickets.cancel(this.#ticket.ticket_id), { kind: "quiet", id: "cancel" }),
        isParty ? "" : element("p", {
          className: "hint",
          textContent: "Nobody else here? Open a second browser or a private window, and sign in under another name.",
        }),
      );
    }
    const until = ticket.estimate && this.#client.serverNow() + ticket.estimate.seconds * 1000;
    const readAgain = performance.now() + ESTIMATE_AGAIN;
    let isReading = false;
    this.#every(500, () => {
      const now = this.#client.serverNow();
      $("waited").textContent = duration(Math.max(0, Math.floor((now - Date.parse(ticket.created_at)) / 1000)));
      $("why").textContent = `${REASONS[ticket.reason] ?? ""} ${estimate(until, now)}`.trim();
      if (performance.now() < readAgain || isReading) return;
      isReading = true;
      // The stream reports what this may miss.
      this.#client.tickets.get(ticket.ticket_id).then((read) => this.#refresh(read), () => {});
    });
  }

  // Shows what was read again, unless the ticket has another state since.
  #refresh(ticket) {
    const { ticket_id: id, state } = this.#ticket;
    if (ticket.ticket_id === id && ticket.state === state) this.onTicket(ticket);
  }

  // Asks whether the player is ready, or says how many others are.
  #showReadyCheck({ ticket_id: id, ready_check: check }) {
    const { accepted, players, answer, expires_at: expiresAt } = check;
    const what = answer ? "accepted" : "ready-check";
    if (this.#shown !== what) {
      const accept = () => this.#client.tickets.accept(id).then((ticket) => this.#refresh(ticket));
      const decline = () => this.#client.tickets.decline(id);
      this.#show(
        what,
        element("div", { className: "lamp beating" }, icon("bolt")),
        element("p", { id: "asked", className: "searching quiet", role: "status", textContent: answer ? "Waiting for the others" : "Match found! Are you ready?" }),
        element("p", { id: "left", className: "clock", role: "timer" }),
        element("p", { id: "accepted", className: "hint" }),
        answer ? "" : element(
          "div",
          { className: "buttons" },
          button("Accept", accept, { kind: "large", id: "accept" }),
          button("Decline", decline, { kind: "quiet large", id: "decline" }),
        ),
      );
    }
    $("accepted").textContent = `${accepted} of ${players} players accepted`;
    this.#every(250, () => {
      $("left").textContent = duration(Math.max(0, Math.ceil((Date.parse(expiresAt) - this.#client.serverNow()) / 1000)));
    });
  }

  // Runs now and then repeatedly, until the stage shows something else or this is called again.
  #every(milliseconds, act) {
    clearInterval(this.#timer);
    act();
    this.#timer = setInterval(act, milliseconds);
  }

  // Empties the stage and fills it again.
  #show(what, ...children) {
    clearInterval(this.#timer);
    this.#shown = what;
    const hadFocus = $("stage").contains(document.activeElement);
    $("stage").dataset.shows = what;
    $("stage").replaceChildren(...children);
    // The focus must not fall back to the top of the page.
    if (hadFocus) ($("stage").querySelector("button") ?? $("play-title")).focus();
  }

  // Looks for the next match: with the same friend, or with anybody.
  #again() {
    if (!Party.isQueue(this.#entered?.queue)) return this.#find();
    if (this.#party?.canPlay) return attempt(() => this.#party.play());
    return this.#exit("The leader of your party starts the next match.");
  }

  #find() {
    return attempt(async () => {
      const { queues } = await this.#client.clientConfig();
      const queue = queues.includes("duel") ? "duel" : queues[0];
      if (!queue) throw new Error("This server has no queue. Add one below [matchmaking.queues] of its configuration.");
      // The ticket of the previous match still exists for a while and would be returned again.
      const previous = this.#ticket?.state === "ASSIGNED" && { replaces: this.#ticket.ticket_id };
      this.onQueued(await this.#client.tickets.create({ queue, ...previous }));
    });
  }

  // The match that this player has entered last, also before a reload.
  get #entered() {
    const stored = JSON.parse(localStorage.getItem(STORED) ?? "null");
    return stored?.userId === this.#userId ? stored : undefined;
  }

  // Stores a new match, or a change of the last one.
  #remember(change) {
    const previous = change.ticketId ? {} : this.#entered;
    localStorage.setItem(STORED, JSON.stringify({ ...previous, ...change, userId: this.#userId }));
  }
}

// Says how much longer the player waits, as far as that is known.
function estimate(until, now) {
  if (!until) return "How long it takes is not known: there were too few matches lately.";
  const seconds = Math.max(1, Math.ceil((until - now) / 1000));
  return `About ${seconds === 1 ? "one more second" : `${seconds} more seconds`}, judging by recent matches.`;
}
