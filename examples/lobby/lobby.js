// The lobby of an example game. It uses the JavaScript client and public routes of the gateway, and nothing else.
//
// Each part of the page is a module. This one signs the player in, opens the stream, and hands the parts what arrives.

import { Playhouse, ProblemError, SignedOutError } from "/assets/client/index.js";
import { Drops } from "./drop.js";
import { Inbox } from "./inbox.js";
import { Inventory } from "./inventory.js";
import { Match } from "./match.js";
import { $, explain, showError, toast } from "./page.js";
import { Party } from "./party.js";
import { Profile } from "./profile.js";

const STATES = {
  connecting: "Connecting …",
  open: "Live",
  polling: "Live",
  offline: "Offline. Trying again …",
  ended: "Not connected",
};

const client = new Playhouse();

async function start() {
  let me, queues;
  try {
    [me, { queues }] = await Promise.all([client.me(), client.clientConfig()]);
  } catch (error) {
    if (!(error instanceof SignedOutError)) return fail(error);
    $("signed-out").hidden = false;
    return;
  }
  const profile = new Profile();
  profile.show(me);
  const inventory = new Inventory(client, (owned) => profile.count(owned));
  const inbox = new Inbox(client);
  const drops = new Drops(client);
  const party = Party.isIn(queues) ? new Party(client, me.user_id, (ticket) => match.onQueued(ticket)) : undefined;
  const match = new Match(client, me.user_id, party);
  $("lobby").hidden = false;

  const live = client.live();
  live.on("state", showConnection);
  // The whole state: at the beginning, and after each reconnect.
  live.on("home", (home) => {
    if (home.entitlements.data) inventory.show(home.entitlements.data.entitlements);
    if (home.notifications.data) inbox.show(home.notifications.data);
    if (home.matchmaking.data) match.show(home.matchmaking.data.tickets);
    if (home.party?.data) party?.show(home.party.data);
    drops.show(home.drops?.data);
  });
  live.on("notification", (notification) => {
    inbox.add(notification);
    toast(notification.title, "mail");
    // A grant, a purchase, a result: the inventory may have changed.
    inventory.refresh();
    drops.onNotification(notification);
  });
  live.on("inbox", (counts) => inbox.count(counts));
  live.on("ticket", (ticket) => match.onTicket(ticket));
  live.on("party", (parties) => party?.show(parties));
  live.on("end", ({ code }) => code !== "closed" && location.reload());
  showConnection(live.state);
}

function showConnection(state) {
  $("connection").textContent = STATES[state];
  $("connection").dataset.state = state;
  $("connection").hidden = false;
}

// Nothing can be shown. Tries again by itself, unless the gateway has refused.
function fail(error) {
  showError(explain(error));
  if (!(error instanceof ProblemError) || error.status >= 500) setTimeout(() => location.reload(), 5000);
}

start();
