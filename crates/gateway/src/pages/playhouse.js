// The home page: the signed-in player, the inbox, drops and matchmaking.

import * as drops from "./drops.js";
import * as inbox from "./inbox.js";
import { $, call, element, showError } from "./page.js";
import { openStream } from "./stream.js";

// The latest ticket of the player.
let current;

function fact(name, value, id = "") {
  $("facts").append(element("dt", { textContent: name }), element("dd", { id, textContent: value }));
}

function resources(entitlements) {
  return entitlements.map((entitlement) => entitlement.resource).join(", ") || "nothing yet";
}

async function onNotification(notification) {
  inbox.add(notification);
  drops.onNotification(notification);
  // A notification with a resource is about a grant or a revocation.
  if (!("resource" in notification.data)) return;
  const { entitlements } = await call("GET", "/v1/entitlements");
  $("owned").textContent = resources(entitlements);
}

function showTicket(ticket) {
  // An earlier ticket, or an outdated state of this one.
  if (ticket.created_at < current?.created_at) return;
  const same = ticket.ticket_id === current?.ticket_id;
  if (same && ticket.state === "WAITING" && current.state !== "WAITING") return;
  // A match stays on the screen after its ticket is removed.
  const isOver = same && ticket.state === "GONE" && current.state === "ASSIGNED";
  current = ticket;
  $("play").disabled = ticket.state === "WAITING";
  $("cancel").hidden = ticket.state !== "WAITING";
  if (isOver) return;
  const texts = {
    WAITING: "Waiting for an opponent …",
    ASSIGNED: `Match found: ${ticket.assignment?.connection}`,
    GONE: "You are no longer waiting.",
  };
  $("match").textContent = texts[ticket.state];
  $("match").dataset.state = ticket.state;
}

async function play() {
  showError("");
  try {
    const { queues } = await call("GET", "/v1/client-config");
    if (!queues.length) return showError("No queue is configured.");
    // The ticket of the previous match still exists for a while and would be returned again.
    const previous = current?.state === "ASSIGNED" && { replaces: current.ticket_id };
    showTicket(await call("POST", "/v1/matchmaking/tickets", { queue: queues[0], ...previous }));
  } catch (error) {
    showError(error.message);
  }
}

async function cancel() {
  try {
    await call("DELETE", `/v1/matchmaking/tickets/${current.ticket_id}`);
  } catch (error) {
    showError(error.message);
  }
}

async function start() {
  try {
    const home = await call("GET", "/v1/home");
    const me = home.account.data;
    $("name").textContent = me.display_name ?? me.user_id;
    fact("User", me.user_id);
    fact("Roles", me.roles.join(", "));
    fact("Accounts", me.accounts.map((account) => account.name).join(", "));
    const owned = home.entitlements.data;
    fact("Owns", owned ? resources(owned.entitlements) : "not available at the moment", "owned");
    if (me.session) $("logout").href = me.session.logout_url;
    const page = home.notifications.data;
    if (page) inbox.list(page);
    $("play").onclick = play;
    $("cancel").onclick = cancel;
    $("signed-in").hidden = false;
    drops.start(home.drops?.data).catch((error) => showError(error.message));
    // Starts where the list ends, so that no notification is missed. Existing tickets are sent first.
    let isFresh = Boolean(page);
    openStream(page?.last_event_id ?? "", {
      ready() {
        // Notifications may have been marked while the stream was disconnected.
        if (!isFresh) inbox.reload();
        isFresh = false;
      },
      notification: (notification) => onNotification(notification).catch((error) => showError(error.message)),
      inbox: inbox.reload,
      ticket: showTicket,
    });
  } catch (error) {
    if (error.status !== 401) showError(error.message);
    $("signed-out").hidden = false;
  }
}

start();
