// A game on its game server: a stream of states, and two actions.
//
// Every message has the whole state, so a reconnect needs nothing else.

import { button, element } from "./page.js";

// The first and the longest wait before a reconnect, in milliseconds.
const FIRST_WAIT = 300;
const LONGEST_WAIT = 4000;
// The server sends something every five seconds. Longer silence means that the connection is dead.
const SILENCE = 12_000;

const ENDINGS = {
  points: { won: "You won!", lost: "You lost." },
  forfeit: { won: "Your opponent left. You won!", lost: "You were away for too long." },
  draw: { none: "A draw." },
  "nobody-came": { none: "The match did not begin: not everybody was ready in time." },
  deserted: { none: "Both players left." },
};

export class Arena {
  #stored;
  #handlers;
  #abort = new AbortController();
  // The parts of the page, built once, so that a state changes texts only.
  #parts;
  #view;
  #pressedRound;

  // `stored` has the connection and the token of the assignment. `handlers` are `over`, `gone`, `again` and `leave`: what the match does then.
  constructor(stage, stored, handlers) {
    this.#stored = stored;
    this.#handlers = handlers;
    this.#parts = this.#build(stage);
    this.#note("Connecting to the match …");
    this.#follow();
  }

  close() {
    this.#abort.abort();
    document.removeEventListener("keydown", this.#onKey);
  }

  #build(stage) {
    const players = [0, 1].map(() => ({
      name: element("span", { className: "seat-name" }),
      state: element("span", { className: "seat-state" }),
      points: element("span", { className: "points" }),
    }));
    const [you, other] = players.map(({ name, state, points }, index) =>
      element("div", { className: index ? "seat other" : "seat you" }, element("div", { className: "seat-who" }, name, state), points),
    );
    const pad = element("button", { id: "pad", className: "pad", type: "button" });
    // A finger is faster down than up. A click comes from a keyboard or assistive technology.
    pad.addEventListener("pointerdown", () => this.#onPad());
    pad.addEventListener("click", () => this.#onPad());
    document.addEventListener("keydown", this.#onKey);
    const note = element("p", { id: "arena-note", className: "hint", role: "status" });
    const buttons = element("div", { className: "buttons" });
    stage.replaceChildren(element("div", { id: "seats", className: "seats" }, you, element("span", { className: "versus", textContent: "vs" }), other), pad, note, buttons);
    return { stage, players, pad, note, buttons };
  }

  // The space bar works wherever the focus is, except on another control.
  #onKey = (event) => {
    const isElsewhere = event.target.closest?.("a, button, input") && event.target !== this.#parts.pad;
    if (event.code !== "Space" || event.repeat || isElsewhere || event.target === this.#parts.pad) return;
    event.preventDefault();
    this.#onPad();
  };

  #onPad() {
    const { phase, round } = this.#view ?? {};
    if (phase === "gathering") return this.#send({ action: "ready" });
    if ((phase !== "steady" && phase !== "green") || this.#pressedRound === round) return;
    this.#pressedRound = round;
    this.#send({ action: "press", round });
  }

  // Sends an action. The server ignores one that comes too late, so a repetition does no harm.
  async #send(action) {
    const request = {
      method: "POST",
      headers: { authorization: `Bearer ${this.#stored.token}`, "content-type": "application/json" },
      body: JSON.stringify(action),
      signal: this.#abort.signal,
    };
    for (let attempt = 0; attempt < 3 && !this.#abort.signal.aborted; attempt += 1) {
      const sent = await fetch(`${this.#stored.connection}/actions`, request).catch(() => undefined);
      if (sent) return;
      await this.#wait(FIRST_WAIT);
    }
  }

  async #follow() {
    let wait = FIRST_WAIT;
    while (!this.#abort.signal.aborted) {
      try {
        await this.#stream(() => (wait = FIRST_WAIT));
      } catch (error) {
        if (this.#abort.signal.aborted) return;
        if (error instanceof Gone) return this.#onGone();
      }
      if (this.#abort.signal.aborted) return;
      if (this.#view?.phase !== "over") this.#note("The connection to the match broke. Connecting again …");
      await this.#wait(wait);
      wait = Math.min(wait * 2, LONGEST_WAIT);
    }
  }

  // Reads one connection until it ends.
  async #stream(onOpen) {
    const connection = new AbortController();
    const end = () => connection.abort();
    this.#abort.signal.addEventListener("abort", end, { once: true });
    // A browser may keep a page that the player has left, with its connections. To the server the player would still be there.
    addEventListener("pagehide", end, { once: true });
    let silence = setTimeout(end, SILENCE);
    try {
      const headers = { authorization: `Bearer ${this.#stored.token}` };
      const response = await fetch(`${this.#stored.connection}/events`, { headers, signal: connection.signal });
      if (response.status === 404 || response.status === 401) throw new Gone();
      if (!response.ok) return;
      onOpen();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(end, SILENCE);
        // An event ends with an empty line. Each has one line of data; comments have none.
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const event of events) {
          const data = event.split("\n").find((line) => line.startsWith("data:"));
          if (data) this.#show(JSON.parse(data.slice("data:".length)));
        }
      }
    } finally {
      clearTimeout(silence);
      this.#abort.signal.removeEventListener("abort", end);
      removeEventListener("pagehide", end);
    }
  }

  // The room is gone. After a result that is as expected.
  #onGone() {
    if (this.#view?.phase !== "over") this.#handlers.gone();
  }

  #show(view) {
    this.#view = view;
    const { stage, players, pad, buttons } = this.#parts;
    const isFirst = view.you === "first";
    const seats = isFirst ? view.players : [...view.players].reverse();
    seats.forEach((seat, index) => {
      const fallback = index ? "Opponent" : "You";
      players[index].name.textContent = index ? (seat.name ?? fallback) : "You";
      players[index].state.textContent = seatState(seat, view.phase);
      players[index].points.textContent = view.phase === "gathering" ? "" : String(seat.points);
    });
    const { text, hint, look } = this.#describe(view, seats);
    stage.dataset.phase = view.phase;
    pad.dataset.look = look;
    pad.textContent = text;
    pad.hidden = false;
    pad.disabled = look === "ready" || look === "result";
    this.#note(hint);
    if (view.phase !== "over") return buttons.replaceChildren();
    this.#handlers.over();
    if (buttons.childElementCount) return;
    buttons.append(
      button("Play again", () => this.#handlers.again(), { id: "again" }),
      button("Back to the lobby", () => this.#handlers.leave(), { kind: "quiet", id: "leave" }),
    );
  }

  // Returns the text of the pad, the line below it, and the look of the pad.
  #describe(view, [you, other]) {
    const opponent = other.name ?? "your opponent";
    const rule = `First to ${view.points_to_win} points. Space bar or tap.`;
    switch (view.phase) {
      case "gathering":
        if (!you.ready) return { text: "I am ready", hint: `Match found! You play against ${opponent}.`, look: "start" };
        return { text: "Ready", hint: other.here ? `Waiting until ${opponent} is ready …` : `Waiting for ${opponent} to arrive …`, look: "ready" };
      case "steady":
        return { text: "Wait for green …", hint: `Round ${view.round}. ${rule}`, look: "steady" };
      case "green":
        return { text: "Now!", hint: `Round ${view.round}. ${rule}`, look: "green" };
      case "scored":
        return { ...this.#scored(view.scored, view.you), look: "result" };
      case "deciding":
        return { text: "…", hint: "Writing down the result.", look: "result" };
      default: {
        const { winner, ending } = view.result;
        const who = winner === null ? "none" : winner === view.you ? "won" : "lost";
        const hint = who === "won" ? "The trophy arrives in your inventory." : "";
        return { text: ENDINGS[ending]?.[who] ?? "The match is over.", hint, look: `result ${who}` };
      }
    }
  }

  #scored({ how, winner, after_ms }, seat) {
    const isYours = winner === seat;
    if (how === "nobody") return { text: "Too slow", hint: "Nobody pressed. No point." };
    if (how === "too-early") {
      return isYours
        ? { text: "Your point", hint: "Your opponent pressed too early." }
        : { text: "Too early!", hint: "You pressed before green. The point is lost." };
    }
    return isYours
      ? { text: "Your point", hint: `You were faster: ${after_ms} ms.` }
      : { text: "Too slow", hint: `Your opponent needed ${after_ms} ms.` };
  }

  #note(text) {
    if (this.#parts.note.textContent !== text) this.#parts.note.textContent = text;
  }

  #wait(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#abort.signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
    });
  }
}

// The server does not know the match, or not this player.
class Gone extends Error {}

function seatState({ here, ready }, phase) {
  if (phase === "over") return "";
  if (!here) return phase === "gathering" ? "on the way" : "away";
  if (phase !== "gathering") return "";
  return ready ? "ready" : "here";
}
