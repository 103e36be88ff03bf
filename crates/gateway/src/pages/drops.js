// Drops: the countdown, the player's place in line, the live stock, purchases.

import { $, call, element, showError } from "./page.js";

// Milliseconds between two requests.
const LIST_EVERY = 10_000;
const PLACE_EVERY = 3_000;
const STOCK_EVERY = 5_000;
// The most orders on the page.
const ORDERS = 5;
// Over HTTP/1.1 a browser opens few connections to a host, and each stream occupies one. The stock of further drops is polled.
const STREAMS = 2;

// By drop id: the state of a drop and its elements.
const cards = new Map();
// How far the server's clock is ahead of this device's clock, in milliseconds.
let skew = 0;

// Shows the drops and keeps them up to date. `home` is the part `drops` of /v1/home.
export async function start(home) {
  await list();
  for (const { drop, place } of home?.places ?? []) place && update(drop.drop_id, { place });
  showReservations(home?.reservations ?? []);
  await orders();
  setInterval(() => quietly(list), LIST_EVERY);
  setInterval(() => cards.forEach(countdown), 250);
}

// Updates the drop that a notification is about.
export function onNotification(notification) {
  const id = notification.data?.drop_id;
  if (id) quietly(() => Promise.all([refresh(id), reservations(), orders()]));
}

// Ignores a failure: the next attempt repairs it.
const quietly = (work) => work().catch(() => {});

async function list() {
  const { drops } = await call("GET", "/v1/drops");
  for (const drop of drops) {
    skew = Date.parse(drop.now) - Date.now();
    if (!cards.has(drop.drop_id)) add(drop);
    update(drop.drop_id, { drop });
  }
  for (const [id, card] of cards) {
    if (!drops.some((drop) => drop.drop_id === id)) quietly(() => reload(card));
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
  part("status", "status", { role: "status" });
  part("buttons", "buttons");
  card.element = element("article", { className: "drop" }, title, card.price, card.opening, stock, card.status, card.buttons);
  card.element.dataset.drop = drop.drop_id;
  cards.set(drop.drop_id, card);
  $("drop-list").append(card.element);
  card.streams = cards.size <= STREAMS;
  card.streams ? openStream(card) : poll(card);
  quietly(() => refresh(drop.drop_id));
}

function showStock(card, stock) {
  if (stock.version >= (card.stock?.version ?? 0)) update(card.drop.drop_id, { stock });
}

// Streams the stock, and the place while the player waits. A browser reconnects by itself. Every event contains the whole state.
function openStream(card) {
  card.stream?.close();
  const stream = (card.stream = new EventSource(path(card, "/stream?place=true")));
  stream.addEventListener("stock", (event) => showStock(card, JSON.parse(event.data)));
  stream.addEventListener("place", (event) => update(card.drop.drop_id, { place: JSON.parse(event.data) }));
  stream.addEventListener("end", () => stream.close());
  // A browser gives up a refused stream: the player has too many streams, in other windows.
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
  if (drops?.data) showReservations(drops.data.reservations);
}

function showReservations(reservations) {
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

const ORDER_STATES = {
  PENDING: "not paid yet",
  PAID: "paid: it is yours",
  REFUND_DUE: "paid too late: you get a refund",
  FAILED: "the payment failed",
  REFUNDED: "refunded",
};

function orderRow(order) {
  const name = cards.get(order.drop_id)?.drop.name ?? "A past drop";
  const text = `${order.quantity} × ${name}, ${money(order.amount, order.currency)}: ${ORDER_STATES[order.state]}`;
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
  // The first players are admitted at the opening, before the page has requested the new state of the drop.
  if (change.place?.state === "entered" && card.drop.state === "SCHEDULED") quietly(() => reload(card));
}

async function reload(card) {
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
  card.status.textContent = status(card);
  countdown(card);
  buttons(card);
}

const isOver = (drop) => drop.state === "CLOSED" || drop.state === "CANCELLED";
const hasAll = ({ drop, bought }) => bought >= drop.per_player;

function countdown(card) {
  const { state, opens_at: opensAt } = card.drop;
  const texts = { OPEN: "Open now", PAUSED: "Paused: places are kept", CLOSED: "Over", CANCELLED: "Cancelled" };
  if (state !== "SCHEDULED") return void (card.opening.textContent = texts[state]);
  const left = Math.ceil((Date.parse(opensAt) - Date.now() - skew) / 1000);
  card.opening.textContent = left > 0 ? `Opens in ${duration(left)}` : "Opens at any moment";
  // Reloads once per second until the drop is open.
  if (left <= 0 && left !== card.reloadedAt) {
    card.reloadedAt = left;
    quietly(() => reload(card));
  }
}

function status(card) {
  const { drop, place, reservation } = card;
  if (reservation) return `${reservation.quantity} reserved for you until ${clock(reservation.expires_at)}.`;
  switch (place?.state) {
    case "waiting": {
      const at =
        place.ahead === undefined
          ? "Your place is kept; its number is not available at the moment."
          : `You are number ${place.ahead + 1} of ${place.waiting}.`;
      const unknown = drop.state === "OPEN" ? "The wait is not known yet." : "";
      const wait = place.wait_seconds === null ? unknown : `About ${duration(Math.max(place.wait_seconds, 1))}.`;
      return [at, wait, place.message].filter(Boolean).join(" ");
    }
    case "entered":
      return `It is your turn until ${clock(place.admission.expires_at)}.`;
    case "expired":
      return "Your turn has ended.";
    case "left":
      return hasAll(card) ? "You have all that a player may buy." : "You have left the line.";
    default:
      return "";
  }
}

// Returns which buttons the player can use now: a key of BUTTONS.
function actions(card) {
  const { drop, place, reservation, stock } = card;
  if (reservation) return "reserved";
  if (isOver(drop) || !place) return "none";
  if (place.state === "entered") return drop.state !== "OPEN" ? "paused" : stock?.available === 0 ? "sold-out" : "inside";
  if (hasAll(card)) return "none";
  return place.state === "waiting" ? "waiting" : "outside";
}

// Rebuilds the buttons only when they change, so that no click is lost.
function buttons(card) {
  const shown = actions(card);
  if (shown === card.shown) return;
  card.shown = shown;
  card.buttons.replaceChildren(...BUTTONS[shown](card).flatMap((one) => [one, " "]));
}

function button(text, act, quiet = false) {
  const created = element("button", { className: quiet ? "button quiet" : "button", textContent: text });
  created.onclick = async () => {
    showError("");
    created.disabled = true;
    try {
      await act();
    } catch (error) {
      showError(error.message);
    } finally {
      created.disabled = false;
    }
  };
  return created;
}

const BUTTONS = {
  none: () => [],
  outside: (card) => [button("Join the line", () => join(card))],
  waiting: (card) => [button("Leave the line", () => leave(card), true)],
  // It is the player's turn, but the drop does not sell at the moment.
  paused: (card) => [button("Leave", () => leave(card), true)],
  "sold-out": (card) => [
    element("span", { textContent: "Everything is reserved or sold at the moment." }),
    button("Leave", () => leave(card), true),
  ],
  inside(card) {
    const quantity = element("input", { type: "number", min: 1, max: card.drop.per_player, value: 1, ariaLabel: "Quantity" });
    return [quantity, button("Reserve", () => reserve(card, quantity.valueAsNumber)), button("Leave", () => leave(card), true)];
  },
  reserved: (card) => [button("Pay", () => pay(card)), button("Cancel reservation", () => release(card), true)],
};

async function join(card) {
  update(card.drop.drop_id, { place: await call("POST", path(card, "/join")) });
  // A stream sends only a place that existed when it was opened.
  if (card.streams) openStream(card);
}

async function leave(card) {
  await call("POST", path(card, "/leave"));
  await refresh(card.drop.drop_id);
}

async function reserve(card, quantity) {
  // The key stays the same until there is a response, so a repeated request reserves once.
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
  if (!order.checkout_url) return showError("Pay in the game: this server has no checkout page.");
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
