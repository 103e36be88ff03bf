// The first page: who is signed in, and a match to try.

const $ = (id) => document.getElementById(id);
const CSRF = { "x-playhouse-csrf": "1" };
let stream;
let current;

function trouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

async function call(method, path, body) {
  const headers = { ...CSRF, ...(body && { "content-type": "application/json" }) };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const data = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw Object.assign(new Error(data.detail ?? data.title), { status: answer.status });
  return data;
}

function fact(name, value) {
  const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
  dt.textContent = name;
  dd.textContent = value;
  $("facts").append(dt, dd);
}

function show(ticket) {
  // A match that was found stays one when its ticket is forgotten.
  const over = ticket.state === "GONE" && current?.state === "ASSIGNED";
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

function follow(ticket) {
  show(ticket);
  stream?.close();
  $("cancel").onclick = () => call("DELETE", `/v1/matchmaking/tickets/${ticket.ticket_id}`).catch((error) => trouble(error.message));
  stream = new EventSource(`/v1/matchmaking/tickets/${ticket.ticket_id}/stream`);
  stream.addEventListener("ticket", (event) => show(JSON.parse(event.data)));
  stream.addEventListener("end", () => stream.close());
}

async function play() {
  trouble("");
  try {
    const { queues } = await call("GET", "/v1/client-config");
    if (!queues.length) return trouble("No queue is configured.");
    // The ticket of the match before is still there for a while, and would be the answer again.
    const before = current?.state === "ASSIGNED" && { replaces: current.ticket_id };
    current = undefined;
    stream?.close();
    follow(await call("POST", "/v1/matchmaking/tickets", { queue: queues[0], ...before }));
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
    const owned = home.entitlements.data?.entitlements.map((one) => one.resource).join(", ");
    fact("Owns", owned === undefined ? "cannot be said at the moment" : owned || "nothing yet");
    if (me.session) $("logout").href = me.session.logout_url;
    $("somebody").hidden = false;
    const last = home.matchmaking.data?.tickets.at(-1);
    if (last) follow(last);
    $("play").onclick = play;
  } catch (error) {
    if (error.status !== 401) trouble(error.message);
    $("nobody").hidden = false;
  }
}

begin();
