// The first page: who is signed in, what they were told, and a match to try.

import * as drops from "./drops.js";
import * as inbox from "./inbox.js";
import { $, call, element, trouble } from "./page.js";
import { follow } from "./stream.js";

let current;

function fact(name, value, id = "") {
  $("facts").append(element("dt", { textContent: name }), element("dd", { id, textContent: value }));
}

function owned(entitlements) {
  return entitlements.map((one) => one.resource).join(", ") || "nothing yet";
}

async function told(notification) {
  inbox.add(notification);
  drops.heard(notification);
  // Something was granted or revoked.
  if (!("resource" in notification.data)) return;
  const { entitlements } = await call("GET", "/v1/entitlements");
  $("owned").textContent = owned(entitlements);
}

function show(ticket) {
  // The ticket of a match before, or a word that was overtaken by a later one.
  if (ticket.created_at < current?.created_at) return;
  const same = ticket.ticket_id === current?.ticket_id;
  if (same && ticket.state === "WAITING" && current.state !== "WAITING") return;
  // A match that was found stays one when its ticket is forgotten.
  const over = same && ticket.state === "GONE" && current.state === "ASSIGNED";
  current = ticket;
  $("play").disabled = ticket.state === "WAITING";
  $("cancel").hidden = ticket.state !== "WAITING";
  if (over) return;
  const words = {
    WAITING: "Waiting for an opponent …",
    ASSIGNED: `Match found: ${ticket.assignment?.connection}`,
    GONE: "You are not waiting any more.",
  };
  $("match").textContent = words[ticket.state];
  $("match").dataset.state = ticket.state;
}

async function play() {
  trouble("");
  try {
    const { queues } = await call("GET", "/v1/client-config");
    if (!queues.length) return trouble("No queue is configured.");
    // The ticket of the match before is still there for a while, and would be the answer again.
    const before = current?.state === "ASSIGNED" && { replaces: current.ticket_id };
    show(await call("POST", "/v1/matchmaking/tickets", { queue: queues[0], ...before }));
  } catch (error) {
    trouble(error.message);
  }
}

async function cancel() {
  try {
    await call("DELETE", `/v1/matchmaking/tickets/${current.ticket_id}`);
  } catch (error) {
    trouble(error.message);
  }
}

async function begin() {
  try {
    const home = await call("GET", "/v1/home");
    const me = home.account.data;
    $("name").textContent = me.display_name ?? me.user_id;
    fact("User", me.user_id);
    fact("Roles", me.roles.join(", "));
    fact("Accounts", me.accounts.map((account) => account.name).join(", "));
    const owns = home.entitlements.data;
    fact("Owns", owns ? owned(owns.entitlements) : "cannot be said at the moment", "owned");
    if (me.session) $("logout").href = me.session.logout_url;
    const page = home.notifications.data;
    if (page) inbox.list(page);
    $("play").onclick = play;
    $("cancel").onclick = cancel;
    $("somebody").hidden = false;
    drops.begin(home.drops?.data).catch((error) => trouble(error.message));
    // From where the list ends, so that nothing is missed between. Tickets that are there are told first.
    let fresh = Boolean(page);
    follow(page?.last_event_id ?? "", {
      ready() {
        // What was marked while nothing was heard.
        if (!fresh) inbox.reload();
        fresh = false;
      },
      notification: (one) => told(one).catch((error) => trouble(error.message)),
      inbox: inbox.reload,
      ticket: show,
    });
  } catch (error) {
    if (error.status !== 401) trouble(error.message);
    $("nobody").hidden = false;
  }
}

begin();
