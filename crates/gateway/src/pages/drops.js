// Drops: when they open, the player's place in line, the stock as it moves, buying.

import { $, call, element, trouble } from "./page.js";

const LIST_EVERY = 10_000;
const PLACE_EVERY = 3_000;
const STOCK_EVERY = 5_000;
const ORDERS = 5;
// A browser opens few connections to a host over HTTP/1.1, and each stream occupies one. The stock of further drops is polled.
const STREAMS = 2;

// By drop id: what is known of the drop, and the elements that show it.
const cards = new Map();
// How far the server's clock is ahead of this device's.
let skew = 0;

// Shows the drops and keeps them up to date. `home` is the drops' part of /v1/home.
export async function begin(home) {
  await list();
  for (const { drop, place } of home?.places ?? []) place && update(drop.drop_id, { place });
  held(home?.reservations ?? []);
  await orders();
  setInterval(() => quietly(list), LIST_EVERY);
  setInterval(() => cards.forEach(countdown), 250);
}

// Something happened to the player that may concern a drop.
export function heard(notification) {
  const id = notification.data?.drop_id;
  if (id) quietly(() => Promise.all([refresh(id), reservations(), orders()]));
}

// The next attempt makes up for one that fails.
const quietly = (work) => work().catch(() => {});

async function list() {
  const { drops } = await call("GET", "/v1/drops");
  for (const drop of drops) {
    skew = Date.parse(drop.now) - Date.now();
    if (!cards.has(drop.drop_id)) add(drop);
    update(drop.drop_id, { drop });
  }
  for (const [id, card] of cards) {
    if (!drops.some((drop) => drop.drop_id === id)) quietly(() => look(card));
  }
  $("drops").hidden = cards.size === 0;
}

const path = ({ drop }, rest = "") => `/v1/drops/${drop.drop_id}${rest}`;

function add(drop) {
  const card = { drop, place: undefined, stock: undefined, reservation: undefined, bought: 0, key: undefined };
  const part = (name, className, attributes) => (card[name] = element("p", { className, ...attributes }));
  const title = element("h3", { textContent: drop.name });
  card.meter = element("meter", { min: 0, max: 1, value: 0, ariaLabel: `Stock of ${drop.name}` });
  card.left = element("span", { className: "left" });
  const stock = element("p", { className: "stock" }, card.meter, " ", card.left);
  part("price", "small");
  part("opening", "opening");
  part("standing", "standing", { role: "status" });
  part("buttons", "buttons");
  card.element = element("article", { className: "drop" }, title, card.price, card.opening, stock, card.standing, card.buttons);
  card.element.dataset.drop = drop.drop_id;
  cards.set(drop.drop_id, card);
  $("drop-list").append(card.element);
  card.streams = cards.size <= STREAMS;
  card.streams ? follow(card) : poll(card);
  quietly(() => refresh(drop.drop_id));
}

function showStock(card, stock) {
  if (stock.version >= (card.stock?.version ?? 0)) update(card.drop.drop_id, { stock });
}

// Follows the stock, and the place while the player waits. A browser connects again by itself. Every event says all of it.
function follow(card) {
  card.stream?.close();
  const stream = (card.stream = new EventSource(path(card, "/stream?place=true")));
  stream.addEventListener("stock", (event) => showStock(card, JSON.parse(event.data)));
  stream.addEventListener("place", (event) => update(card.drop.drop_id, { place: JSON.parse(event.data) }));
  stream.addEventListener("end", () => stream.close());
  // A browser gives up a stream that is refused: there are too many, in other windows.
  stream.addEventListener("error", () => {
    if (stream.readyState !== EventSource.CLOSED || !card.streams) return;
    card.streams = false;
    poll(card);
  });
}

function poll(card) {
  const stock = async () => showStock(card, await call("GET", path(card, "/stock")));
  const place = async () => card.place?.state === "waiting" && refresh(card.drop.drop_id);
  quietly(stock);
  setInterval(() => quietly(stock), STOCK_EVERY);
  setInterval(() => quietly(place), PLACE_EVERY);
}

async function refresh(id) {
  const card = cards.get(id);
  if (card) update(id, { place: await call("GET", path(card, "/place")) });
}

async function reservations() {
  const { drops } = await call("GET", "/v1/home");
  if (drops?.data) held(drops.data.reservations);
}

function held(reservations) {
  for (const [id] of cards) update(id, { reservation: reservations.find((one) => one.drop_id === id) });
}

async function orders() {
  const { orders } = await call("GET", `/v1/orders?limit=${ORDERS}`);
  $("orders").replaceChildren(...orders.map(orderRow));
  $("orders-title").hidden = orders.length === 0;
  for (const [id] of cards) {
    const paid = orders.filter((order) => order.drop_id === id && order.state === "PAID");
    update(id, { bought: paid.reduce((sum, order) => sum + order.quantity, 0) });
  }
}

const ORDER_WORDS = {
  PENDING: "not paid yet",
  PAID: "paid: it is yours",
  REFUND_DUE: "paid too late: your money comes back",
  FAILED: "the payment failed",
  REFUNDED: "refunded",
};

function orderRow(order) {
  const name = cards.get(order.drop_id)?.drop.name ?? "A drop that is over";
  const text = `${order.quantity} × ${name}, ${money(order.amount, order.currency)}: ${ORDER_WORDS[order.state]}`;
  const row = element("li", { textContent: text });
  row.dataset.state = order.state;
  if (order.checkout_url) row.append(" ", element("a", { href: order.checkout_url, textContent: "Pay" }));
  return row;
}

function update(id, change) {
  const card = cards.get(id);
  if (!card) return;
  Object.assign(card, change);
  render(card);
  // The first turns come with the opening, before anybody has asked whether the drop is open.
  if (change.place?.state === "entered" && card.drop.state === "SCHEDULED") quietly(() => look(card));
}

async function look(card) {
  update(card.drop.drop_id, { drop: await call("GET", path(card)) });
}

function render(card) {
  const { drop, stock, place } = card;
  card.price.textContent = `${money(drop.price.amount, drop.price.currency)} each, up to ${drop.per_player} per player`;
  if (stock) {
    card.meter.max = Math.max(stock.total, 1);
    card.meter.value = stock.available;
    const held = stock.reserved ? ` (${stock.reserved} reserved)` : "";
    card.left.textContent = `${stock.available} of ${stock.total} left${held}`;
  }
  card.element.dataset.state = drop.state;
  if (place) card.element.dataset.place = place.state;
  card.standing.textContent = standing(card);
  countdown(card);
  buttons(card);
}

const isOver = (drop) => drop.state === "CLOSED" || drop.state === "CANCELLED";
const hasAll = ({ drop, bought }) => bought >= drop.per_player;

function countdown(card) {
  const { state, opens_at: opensAt } = card.drop;
  const words = { OPEN: "Open now", PAUSED: "Paused: places are kept", CLOSED: "Over", CANCELLED: "Cancelled" };
  if (state !== "SCHEDULED") return void (card.opening.textContent = words[state]);
  const left = Math.ceil((Date.parse(opensAt) - Date.now() - skew) / 1000);
  card.opening.textContent = left > 0 ? `Opens in ${duration(left)}` : "Opens any moment";
  // Asked once per second until the answer says that it is open.
  if (left <= 0 && left !== card.asked) {
    card.asked = left;
    quietly(() => look(card));
  }
}

function standing(card) {
  const { drop, place, reservation } = card;
  if (reservation) return `${reservation.quantity} reserved for you until ${clock(reservation.expires_at)}.`;
  switch (place?.state) {
    case "waiting": {
      const at = place.ahead === undefined ? "Your place is kept; its number is not known at the moment." : `You are number ${place.ahead + 1} of ${place.waiting}.`;
      const wait = place.wait_seconds === null ? (drop.state === "OPEN" ? "The wait is not known yet." : "") : `About ${duration(Math.max(place.wait_seconds, 1))}.`;
      return [at, wait, place.message].filter(Boolean).join(" ");
    }
    case "entered":
      return `It is your turn until ${clock(place.admission.expires_at)}.`;
    case "expired":
      return "Your turn has ended.";
    case "left":
      return hasAll(card) ? "You have all that a player may buy." : "You have left.";
    default:
      return "";
  }
}

// What the player can do now: a name in BUTTONS.
function actions(card) {
  const { drop, place, reservation, stock } = card;
  if (reservation) return "reserved";
  if (isOver(drop) || !place) return "none";
  if (place.state === "entered") return drop.state !== "OPEN" ? "held-up" : stock?.available === 0 ? "sold-out" : "inside";
  if (hasAll(card)) return "none";
  return place.state === "waiting" ? "waiting" : "outside";
}

// Rebuilt only when they change, so that a click is not lost.
function buttons(card) {
  const shown = actions(card);
  if (shown === card.shown) return;
  card.shown = shown;
  card.buttons.replaceChildren(...BUTTONS[shown](card).flatMap((one) => [one, " "]));
}

function button(text, act, quiet = false) {
  const made = element("button", { className: quiet ? "button quiet" : "button", textContent: text });
  made.onclick = async () => {
    trouble("");
    made.disabled = true;
    try {
      await act();
    } catch (error) {
      trouble(error.message);
    } finally {
      made.disabled = false;
    }
  };
  return made;
}

const BUTTONS = {
  none: () => [],
  outside: (card) => [button("Join the line", () => join(card))],
  waiting: (card) => [button("Leave the line", () => leave(card), true)],
  // It is the player's turn, and nothing is sold at the moment.
  "held-up": (card) => [button("Leave", () => leave(card), true)],
  "sold-out": (card) => [element("span", { textContent: "Everything is taken at the moment." }), button("Leave", () => leave(card), true)],
  inside(card) {
    const quantity = element("input", { type: "number", min: 1, max: card.drop.per_player, value: 1, ariaLabel: "How many" });
    return [quantity, button("Reserve", () => reserve(card, quantity.valueAsNumber)), button("Leave", () => leave(card), true)];
  },
  reserved: (card) => [button("Pay", () => pay(card)), button("Give back", () => release(card), true)],
};

async function join(card) {
  update(card.drop.drop_id, { place: await call("POST", path(card, "/join")) });
  // The stream follows a place that there was when it was opened.
  if (card.streams) follow(card);
}

async function leave(card) {
  await call("POST", path(card, "/leave"));
  await refresh(card.drop.drop_id);
}

async function reserve(card, quantity) {
  // One key until there is an answer: a request that is repeated reserves once.
  card.key ??= `page-${Date.now()}-${Math.random()}`;
  try {
    const body = { quantity: quantity || 1, admission: card.place.admission.token };
    const reservation = await call("POST", path(card, "/reservations"), body, { "idempotency-key": card.key });
    card.key = undefined;
    update(card.drop.drop_id, { reservation });
  } catch (error) {
    if (error.status) card.key = undefined;
    await quietly(() => refresh(card.drop.drop_id));
    throw error;
  }
}

const reservationPath = (card, rest = "") => path(card, `/reservations/${card.reservation.reservation_id}${rest}`);

async function pay(card) {
  const order = await call("POST", reservationPath(card, "/pay"));
  if (!order.checkout_url) return trouble("Pay in the game: this server names no checkout.");
  location.assign(order.checkout_url);
}

async function release(card) {
  await call("DELETE", reservationPath(card));
  update(card.drop.drop_id, { reservation: undefined });
  await refresh(card.drop.drop_id);
}

function money(amount, currency) {
  const format = new Intl.NumberFormat(undefined, { style: "currency", currency });
  return format.format(amount / 10 ** format.resolvedOptions().maximumFractionDigits);
}

function duration(seconds) {
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

const clock = (time) => new Date(time).toLocaleTimeString();
