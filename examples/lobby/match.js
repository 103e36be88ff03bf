// Finding a match and playing it.
//
// The ticket says where the player stands: none, waiting, or assigned to a game server. The assignment is kept in the storage of the
// browser, because the game outlasts its ticket: a page that is loaded again in the middle of a game goes back to it.

import { Arena } from "./arena.js";
import { $, attempt, button, duration, element, icon } from "./page.js";

const STORED = "lobby.match";

export class Match {
  #client;
  #userId;
  // The newest ticket.
  #ticket;
  #arena;
  #timer;
  // What the stage shows, so that an update does not replace a button under the finger.
  #shown;

  constructor(client, userId) {
    this.#client = client;
    this.#userId = userId;
    if (this.#entered && !this.#entered.isLeft) this.#enter();
    else this.#showIdle();
  }

  // Shows the tickets of the home screen.
  show(tickets) {
    const [newest] = [...tickets].sort((one, other) => (one.created_at < other.created_at ? 1 : -1));
    if (newest) this.onTicket(newest);
    else if (this.#ticket?.state === "WAITING") this.onTicket({ ...this.#ticket, state: "GONE" });
  }

  onTicket(ticket) {
    // An earlier ticket, or an outdated state of this one.
    if (ticket.created_at < this.#ticket?.created_at) return;
    const isSame = ticket.ticket_id === this.#ticket?.ticket_id;
    if (isSame && ticket.state === "WAITING" && this.#ticket.state !== "WAITING") return;
    this.#ticket = ticket;
    if (ticket.state === "WAITING") {
      this.#leaveArena();
      this.#showWaiting(ticket);
    } else if (ticket.state === "ASSIGNED") {
      this.#onAssigned(ticket);
    } else if (!this.#arena) {
      this.#showIdle("You are no longer waiting.");
    }
  }

  #onAssigned({ ticket_id, assignment: { connection, extensions } }) {
    const token = extensions?.token?.value;
    // The player is there already, or has left: the ticket can be read for a while after the match.
    if (this.#entered?.ticketId === ticket_id) return;
    if (!token) return this.#showIdle(`Your match is at ${connection}. This page cannot play there.`);
    this.#remember({ ticketId: ticket_id, connection, token });
    this.#enter();
  }

  #enter() {
    this.#leaveArena();
    this.#show("arena");
    const { isOver } = this.#entered;
    this.#arena = new Arena($("stage"), this.#entered, {
      over: () => this.#remember({ isOver: true }),
      gone: () => this.#exit(isOver ? "" : "This match no longer exists. Find a new one."),
      again: () => this.#find(),
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
    if (this.#shown === "waiting") return;
    const since = element("p", { className: "clock", role: "timer" });
    const tick = () => {
      const seconds = Math.max(0, Math.floor((this.#client.serverNow() - Date.parse(ticket.created_at)) / 1000));
      since.textContent = duration(seconds);
    };
    this.#show(
      "waiting",
      element("div", { className: "lamp beating" }, icon("bolt")),
      element("p", { id: "searching", className: "searching", role: "status", textContent: "Looking for an opponent" }),
      since,
      button("Cancel", () => this.#client.tickets.cancel(this.#ticket.ticket_id), { kind: "quiet", id: "cancel" }),
      element("p", {
        className: "hint",
        textContent: "Nobody else here? Open a second browser or a private window, and sign in under another name.",
      }),
    );
    tick();
    this.#timer = setInterval(tick, 500);
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

  #find() {
    return attempt(async () => {
      const { queues } = await this.#client.clientConfig();
      const queue = queues.includes("duel") ? "duel" : queues[0];
      if (!queue) throw new Error("This server has no queue. Add one below [matchmaking.queues] of its configuration.");
      // The ticket of the previous match still exists for a while and would be returned again.
      const previous = this.#ticket?.state === "ASSIGNED" && { replaces: this.#ticket.ticket_id };
      this.onTicket(await this.#client.tickets.create({ queue, ...previous }));
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
