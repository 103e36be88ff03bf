// Limited sales: the countdown, the place in line, the live stock, buying.

import { $, button, clock, duration, element, icon, iconOf, money } from "./page.js";

// How often the list of drops is loaded again, in milliseconds: for drops that are created while the page is open, and for the stock of
// those that are not followed.
const LIST_EVERY = 10_000;
const SHOWN = 3;
// The most orders on the page.
const ORDERS = 4;

const IS_OVER = new Set(["CLOSED", "CANCELLED"]);
const HAS_PLACE = new Set(["waiting", "entered"]);

export class Drops {
  #client;
  // By drop id: the state of a drop and its elements.
  #cards = new Map();
  // The drop that is followed live, and its stream. A player has a limited number of streams, and may have several pages open.
  #followed;

  constructor(client) {
    this.#client = client;
    setInterval(() => this.#quietly(() => this.#list()), LIST_EVERY);
    setInterval(() => this.#cards.forEach((card) => this.#countdown(card)), 250);
  }

  // Shows the part of the home screen. Without it, only the list.
  async show(home) {
    await this.#quietly(async () => {
      await this.#list();
      for (const { drop, place } of home?.places ?? []) if (place) this.#update(drop.drop_id, { place });
      if (home) this.#showReservations(home.reservations);
      await this.#orders();
    });
  }

  // Updates the drop that a notification is about.
  onNotification({ data }) {
    const id = data?.drop_id;
    if (!id) return;
    this.#quietly(async () => {
      const [place, home] = await Promise.all([this.#client.drops.place(id), this.#client.home(), this.#orders()]);
      this.#update(id, { place });
      if (home.drops?.data) this.#showReservations(home.drops.data.reservations);
    });
  }

  // Ignores a failure: the next update repairs it.
  async #quietly(work) {
    await work().catch(() => {});
  }

  async #list() {
    const { drops } = await this.#client.drops.list();
    for (const drop of drops.slice(0, SHOWN)) {
      if (!this.#cards.has(drop.drop_id)) this.#add(drop);
      this.#update(drop.drop_id, { drop });
    }
    // A drop that left the list is over.
    for (const [id, card] of this.#cards) {
      if (!drops.some((drop) => drop.drop_id === id) && !IS_OVER.has(card.drop.state)) await this.#reload(id);
    }
    $("no-drops").hidden = this.#cards.size > 0;
    this.#follow();
    for (const [id, { drop }] of this.#cards) {
      if (id !== this.#followed?.id && !IS_OVER.has(drop.state)) this.#update(id, { stock: await this.#client.drops.stock(id) });
    }
  }

  #add(drop) {
    const part = (name, className, attributes = {}) => element(name, { className, ...attributes });
    const card = {
      drop,
      bought: 0,
      opening: part("p", "opening"),
      fill: part("span", "fill"),
      left: part("span", "left"),
      status: part("p", "status", { role: "status" }),
      buttons: part("div", "buttons"),
    };
    // The text below says the same.
    card.stockBar = part("div", "stock-bar", { "aria-hidden": "true" });
    card.stockBar.append(card.fill);
    card.price = part("p", "price");
    card.element = element(
      "article",
      { className: "drop" },
      element("div", { className: "drop-head" }, icon(iconOf(drop.resource), "icon big"), element("div", {}, element("h3", { textContent: drop.name }), card.price)),
      card.opening,
      element("div", { className: "stock" }, card.stockBar, card.left),
      card.status,
      card.buttons,
    );
    card.element.dataset.drop = drop.drop_id;
    this.#cards.set(drop.drop_id, card);
    $("drop-list").append(card.element);
    this.#quietly(async () => this.#update(drop.drop_id, { place: await this.#client.drops.place(drop.drop_id) }));
  }

  // Follows the drop in which the player has a place, or else the first one that is not over.
  #follow() {
    const candidates = [...this.#cards.values()].filter(({ drop }) => !IS_OVER.has(drop.state));
    const mine = candidates.find(({ place, reservation }) => reservation || HAS_PLACE.has(place?.state));
    const id = (mine ?? candidates[0])?.drop.drop_id;
    if (id === this.#followed?.id) return;
    this.#followed?.stream.close();
    this.#followed = undefined;
    if (!id) return;
    const stream = this.#client.drops.follow(id, { place: true });
    this.#followed = { id, stream };
    stream.on("stock", (stock) => this.#update(id, { stock }));
    stream.on("place", (place) => this.#update(id, { place }));
    stream.on("end", ({ code }) => code === "finished" && this.#quietly(() => this.#reload(id)));
  }

  async #reload(id) {
    this.#update(id, { drop: await this.#client.drops.get(id) });
  }

  #showReservations(reservations) {
    for (const id of this.#cards.keys()) {
      this.#update(id, { reservation: reservations.find((one) => one.drop_id === id) });
    }
  }

  async #orders() {
    const { orders } = await this.#client.orders.list({ limit: ORDERS });
    $("orders").replaceChildren(...orders.map((order) => this.#orderRow(order)));
    $("orders-part").hidden = orders.length === 0;
    for (const id of this.#cards.keys()) {
      const paid = orders.filter((order) => order.drop_id === id && order.state === "PAID");
      this.#update(id, { bought: paid.reduce((sum, order) => sum + order.quantity, 0) });
    }
  }

  #orderRow(order) {
    const states = {
      PENDING: "not paid yet",
      PAID: "paid, it is yours",
      REFUND_DUE: "paid too late, you get a refund",
      FAILED: "the payment failed",
      REFUNDED: "refunded",
    };
    const name = this.#cards.get(order.drop_id)?.drop.name ?? "A past sale";
    const text = element("strong", { textContent: `${order.quantity} × ${name}` });
    const row = element("li", { className: "row" }, element("div", { className: "row-head" }, text, element("span", { textContent: money(order.amount, order.currency) })));
    row.append(element("p", { textContent: states[order.state] ?? order.state }));
    if (order.checkout_url) row.append(element("a", { href: checkout(order), textContent: "Pay now" }));
    row.dataset.state = order.state;
    return row;
  }

  #update(id, change) {
    const card = this.#cards.get(id);
    if (!card) return;
    // An answer may be older than what the stream has sent.
    if (change.stock?.version < card.stock?.version) delete change.stock;
    Object.assign(card, change);
    this.#render(card);
    if (change.place) this.#follow();
    // The first players are admitted at the opening, before the page has the new state of the drop.
    if (change.place?.state === "entered" && card.drop.state === "SCHEDULED") this.#quietly(() => this.#reload(id));
  }

  #render(card) {
    const { drop, stock, place } = card;
    const each = `${money(drop.price.amount, drop.price.currency)} each`;
    card.price.textContent = drop.per_player ? `${each}, up to ${drop.per_player} per player` : each;
    if (stock) {
      const share = stock.total ? stock.available / stock.total : 0;
      card.fill.style.setProperty("inline-size", `${share * 100}%`);
      const held = stock.reserved ? `, ${stock.reserved} reserved` : "";
      card.left.textContent = `${stock.available} of ${stock.total} left${held}`;
    }
    card.element.dataset.state = drop.state;
    card.element.dataset.place = place?.state ?? "";
    setText(card.status, this.#status(card));
    this.#countdown(card);
    this.#buttons(card);
  }

  #countdown(card) {
    const { state, opens_at: opensAt, drop_id: id } = card.drop;
    const texts = { OPEN: "Open now", PAUSED: "Paused. Places are kept.", CLOSED: "Over", CANCELLED: "Cancelled", DRAFT: "" };
    if (state !== "SCHEDULED") return setText(card.opening, texts[state] ?? "");
    const left = Math.ceil((Date.parse(opensAt) - this.#client.serverNow()) / 1000);
    setText(card.opening, left > 0 ? `Opens in ${duration(left)}` : "Opens at any moment");
    // Asks once per second until the drop is open.
    if (left <= 0 && left !== card.askedAt) {
      card.askedAt = left;
      this.#quietly(() => this.#reload(id));
    }
  }

  #status({ drop, place, reservation, bought, stock }) {
    if (reservation) return `${reservation.quantity} reserved for you until ${clock(reservation.expires_at)}.`;
    switch (place?.state) {
      case "waiting": {
        if (place.ahead === null || place.ahead === undefined) return "Your place is kept. Its number is not known at the moment.";
        const at = `You are number ${place.ahead + 1} of ${place.waiting} in line.`;
        const wait = place.wait_seconds === null ? "" : ` About ${duration(Math.max(place.wait_seconds, 1))} to go.`;
        return `${at}${wait}${place.message ? ` ${place.message}` : ""}`;
      }
      case "entered":
        if (bought >= drop.per_player) return "You have all that a player may buy.";
        if (stock?.available === 0) return "Everything is reserved or sold. Units come back if a reservation ends.";
        return `It is your turn until ${clock(place.admission.expires_at)}.`;
      case "expired":
        return "Your turn has ended. Join the line again.";
      case "left":
        return bought >= drop.per_player ? "You have all that a player may buy." : "";
      default:
        return IS_OVER.has(drop.state) ? "" : "Join the line now: the places are given in order.";
    }
  }

  // Rebuilds the buttons only when they change, so that no press is lost.
  #buttons(card) {
    const shown = actions(card);
    if (shown === card.shown) return;
    card.shown = shown;
    const hadFocus = card.buttons.contains(document.activeElement);
    card.buttons.replaceChildren(...this.#controls(shown, card));
    if (hadFocus) card.buttons.querySelector("button")?.focus();
  }

  #controls(shown, card) {
    const id = card.drop.drop_id;
    const leave = () => button("Leave the line", () => this.#leave(id), { kind: "quiet" });
    switch (shown) {
      case "outside":
        return [button("Join the line", async () => this.#update(id, { place: await this.#client.drops.join(id) }))];
      case "waiting":
        return [leave()];
      case "inside": {
        const { per_player: most } = card.drop;
        const quantity = element("input", { type: "number", min: 1, max: most - card.bought, value: 1, ariaLabel: "Quantity" });
        const input = most - card.bought > 1 ? [quantity] : [];
        return [...input, button("Reserve", () => this.#reserve(card, quantity.valueAsNumber || 1)), leave()];
      }
      case "sold-out":
        return [leave()];
      case "reserved":
        return [
          button("Pay", () => this.#pay(card)),
          button("Cancel reservation", () => this.#release(card), { kind: "quiet" }),
        ];
      default:
        return [];
    }
  }

  async #leave(id) {
    await this.#client.drops.leave(id);
    this.#update(id, { place: await this.#client.drops.place(id) });
  }

  async #reserve(card, quantity) {
    const { drop, place } = card;
    // The client repeats a lost request with the same key, so this reserves once.
    const reservation = await this.#client.drops.reserve(drop.drop_id, { quantity, admission: place.admission.token });
    this.#update(drop.drop_id, { reservation });
  }

  async #pay(card) {
    const order = await this.#client.drops.pay(card.drop.drop_id, card.reservation.reservation_id);
    if (!order.checkout_url) throw new Error("This server has no checkout page. Set drops.payments.checkout_url.");
    location.assign(checkout(order));
  }

  async #release(card) {
    const { drop_id: id } = card.drop;
    await this.#client.drops.release(id, card.reservation.reservation_id);
    this.#update(id, { reservation: undefined, place: await this.#client.drops.place(id) });
  }
}

// Returns which buttons the player can use now.
function actions({ drop, place, reservation, stock, bought }) {
  if (reservation) return "reserved";
  if (IS_OVER.has(drop.state) || !place || bought >= drop.per_player) return "none";
  if (place.state === "entered") return drop.state !== "OPEN" || stock?.available === 0 ? "sold-out" : "inside";
  return place.state === "waiting" ? "waiting" : "outside";
}

// The demo checkout comes back to this page. A real provider has its own setting for that.
function checkout({ checkout_url }) {
  const url = new URL(checkout_url, location.href);
  if (url.pathname === "/demo/checkout") url.searchParams.set("return_to", "/play");
  return url.href;
}

function setText(shown, text) {
  if (shown.textContent !== text) shown.textContent = text;
}
