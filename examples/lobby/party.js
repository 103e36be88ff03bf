// Playing against a friend: a party, its code, and its members. The leader queues both, so they get into the same match.
//
// The server's answer is the whole party, and so is every event of the stream. The page shows the latest one.

import { $, attempt, button, element } from "./page.js";

// A queue whose rules make a match of one party of two.
const QUEUE = "friends";
const PLAYERS = 2;

export class Party {
  #client;
  #userId;
  #onQueued;
  #party = null;
  // The last ticket of the party, which the next one replaces.
  #previous;

  // `onQueued` gets the ticket when this player queues the party.
  constructor(client, userId, onQueued) {
    this.#client = client;
    this.#userId = userId;
    this.#onQueued = onQueued;
    this.#onClick("create-party", () => client.parties.create({}));
    this.#onClick("leave-party", () => client.parties.leave());
    $("play-party").onclick = () => attempt(() => this.play());
    this.#onSubmit("join-party", "party-code", (code) => client.parties.join({ code: code.toUpperCase() }));
    this.#onSubmit("invite-player", "invited-player", (userId) => client.parties.invite({ user_id: userId }));
  }

  // Whether the server has a queue for this. Otherwise the card stays hidden.
  static isIn(queues) {
    return queues.includes(QUEUE);
  }

  static isQueue(queue) {
    return queue === QUEUE;
  }

  // Whether this player can start the next match.
  get canPlay() {
    return this.#party?.leader === this.#userId && this.#party.members.length === PLAYERS;
  }

  // Shows the part of the home screen, or an event of the stream.
  show({ party, invitations }) {
    this.#party = party;
    $("party").hidden = false;
    $("invitations").replaceChildren(...invitations.map((invitation) => this.#invitation(invitation)));
    $("no-party").hidden = Boolean(party);
    $("in-party").hidden = !party;
    if (!party) return;
    $("code").textContent = party.code;
    $("members").replaceChildren(...party.members.map((member) => this.#member(member)));
    $("fill-party").hidden = party.members.length >= PLAYERS;
    $("play-party").disabled = !this.canPlay || Boolean(party.ticket);
    $("party-note").textContent = this.#note(party);
  }

  // Queues both players.
  async play() {
    const replaces = this.#previous && { replaces: this.#previous };
    this.#onQueued(await this.#client.parties.queue({ queue: QUEUE, ...replaces }));
  }

  // Remembers an assigned ticket: it can be read for a while after the match, and the party would get it again.
  remember({ ticket_id, queue, state }) {
    if (Party.isQueue(queue) && state === "ASSIGNED") this.#previous = ticket_id;
  }

  #note({ members, invited, leader, ticket }) {
    if (members.length < PLAYERS) return invited.length ? "Invited. Waiting for an answer." : "Waiting for a friend.";
    if (members.length > PLAYERS) return "Two can play. Somebody has to leave.";
    if (ticket) return "";
    if (leader === this.#userId) return "Everybody is here.";
    return `${nameOf(members.find((member) => member.user_id === leader))} starts the match.`;
  }

  #member(member) {
    const { user_id: userId } = member;
    const isYou = userId === this.#userId;
    const title = `${nameOf(member)}${isYou ? " (you)" : ""}`;
    const role = userId === this.#party.leader ? element("span", { className: "badge", textContent: "Leader" }) : "";
    const kick = () => this.#client.parties.kick({ user_id: userId }).then((party) => this.#showParty(party));
    const canKick = !isYou && this.#party.leader === this.#userId;
    const row = element("li", { className: "row" });
    row.append(
      element(
        "div",
        { className: "row-head" },
        element("strong", { textContent: title }),
        canKick ? button("Remove", kick, { kind: "quiet small" }) : role,
      ),
    );
    row.dataset.user = userId;
    return row;
  }

  #invitation({ party_id: partyId, leader_name: name }) {
    const accept = () => this.#client.parties.accept(partyId, {}).then((party) => this.#showParty(party));
    const decline = () => this.#client.parties.decline(partyId).then(() => this.#reload());
    return element(
      "li",
      { className: "row" },
      element("strong", { textContent: `${name ?? "A player"} invites you` }),
      element("div", { className: "buttons" }, button("Join", accept, { kind: "small" }), button("Not now", decline, { kind: "quiet small" })),
    );
  }

  #onClick(id, act) {
    $(id).onclick = () => attempt(async () => this.#showParty(await act()));
  }

  // Sends what was typed, and empties the field when that has worked.
  #onSubmit(form, field, act) {
    $(form).onsubmit = async (event) => {
      event.preventDefault();
      const isDone = await attempt(async () => this.#showParty(await act($(field).value.trim())));
      if (isDone) $(form).reset();
    };
  }

  // Shows the answer to a request. Leaving has none.
  #showParty(party) {
    return party ? this.show({ party, invitations: [] }) : this.#reload();
  }

  async #reload() {
    this.show(await this.#client.parties.get());
  }
}

function nameOf({ name, user_id: userId }) {
  return name ?? `Player ${userId.slice(-4)}`;
}
