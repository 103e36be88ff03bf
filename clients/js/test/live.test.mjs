import assert from "node:assert/strict";
import { test } from "node:test";

import { bearer } from "../src/index.js";
import { eventStream, eventually, fakeClient, home, json, problem, record, timers } from "./fake.mjs";

const NAMES = ["state", "home", "notification", "inbox", "ticket", "party", "end"];
const note = (position) => ({ notification_id: `n${position}`, position, title: `number ${position}` });
const waiting = (id) => ({ ticket_id: id, queue: "duel", state: "WAITING" });

// A gateway whose streams the test controls. `homes` are the home screens, the last one for all further requests.
function gateway(homes, options = {}) {
  const streams = [];
  const polls = [];
  const answer = async (request) => {
    const { path, headers, query, signal } = request;
    if (path === "/v1/home") return homes.length > 1 ? homes.shift() : homes[0];
    if (path === "/v1/stream") {
      const refused = options.refuse?.(streams.length, request);
      if (refused) {
        streams.push(undefined);
        return refused;
      }
      const stream = eventStream({ heartbeat: options.heartbeat, signal });
      streams.push({ ...stream, after: headers["last-event-id"], authorization: headers.authorization });
      return stream.response;
    }
    if (path === "/v1/events") {
      polls.push(query);
      return options.poll(query, polls.length, signal);
    }
    throw new Error(`unexpected ${path}`);
  };
  const { client, requests } = fakeClient(answer, options.client);
  const live = client.live(options.live);
  const seen = record(live, NAMES);
  const names = () => seen.filter(([name]) => name !== "state").map(([name, detail]) => (name === "notification" ? detail.position : name));
  return { client, requests, live, seen, names, streams, polls, stream: (count) => eventually(() => streams[count - 1]) };
}

const ready = (position, resumed = true) => ["ready", { last_event_id: String(position), resumed }, position];

test("live loads the home screen, then streams after it", async () => {
  const { client, live, seen, streams, stream } = gateway([home({ position: 4 })]);
  assert.equal(client.live(), live, "there is one stream");
  assert.equal(live.state, "connecting");
  const first = await stream(1);
  assert.equal(first.after, "4");
  first.send(...ready(4));
  first.send("notification", note(5), 5);
  first.send("inbox", { unread: 1, unseen: 1 });
  first.send("ticket", waiting("t"));
  await eventually(() => seen.some(([name]) => name === "ticket"));
  assert.deepEqual(seen.map(([name]) => name), ["home", "state", "notification", "inbox", "ticket"]);
  assert.deepEqual([live.state, live.position, streams.length], ["open", "5", 1]);
  client.close();
  await eventually(() => live.state === "ended");
  assert.deepEqual(seen.at(-1), ["end", { code: "closed", why: "the stream was closed" }]);
  assert.notEqual(client.live(), live, "an ended stream is replaced");
});

test("after a break the stream resumes: missed notifications, then home, then the rest", async () => {
  const { client, names, stream, live } = gateway([home({ position: 4 }), home({ position: 7 })]);
  const first = await stream(1);
  first.send(...ready(4));
  first.send("notification", note(5), 5);
  await eventually(() => live.position === "5");
  first.fail();
  const second = await stream(2);
  assert.equal(second.after, "5");
  second.send(...ready(5));
  // A repeated one is dropped. Tickets wait for the home screen, which is older.
  second.send("notification", note(5), 5);
  second.send("notification", note(6), 6);
  second.send("ticket", waiting("t"));
  second.send("notification", note(7), 7);
  second.send("inbox", { unread: 3, unseen: 3 });
  second.send("notification", note(8), 8);
  await eventually(() => live.position === "8");
  assert.deepEqual(names(), ["home", 5, 6, 7, "home", "ticket", "inbox", 8]);
  client.close();
});

test("a home screen whose newest notification has expired does not wait for it", async () => {
  const { client, names, stream, live } = gateway([home({ position: 4 }), home({ position: 7 })]);
  (await stream(1)).send(...ready(4));
  await eventually(() => live.state === "open");
  (await stream(1)).close();
  const second = await stream(2);
  second.send(...ready(4));
  second.send("notification", note(6), 6);
  second.send("inbox", { unread: 1, unseen: 1 });
  await eventually(() => names().at(-1) === "inbox");
  assert.deepEqual(names(), ["home", 6, "home", "inbox"]);
  client.close();
});

test("a gap is answered with the home screen, whose notifications are not delivered again", async () => {
  const { client, names, stream, live } = gateway([home({ position: 9 }), home({ position: 3 })]);
  (await stream(1)).send(...ready(9));
  await eventually(() => live.state === "open");
  (await stream(1)).fail();
  const second = await stream(2);
  // The database was restored: position 9 does not exist.
  second.send(...ready(2, false));
  second.send("notification", note(3), 3);
  second.send("notification", note(4), 4);
  await eventually(() => live.position === "4");
  assert.deepEqual(names(), ["home", "home", 4]);
  client.close();
});

test("tickets that are gone after a reconnect are reported as gone", async () => {
  const { client, seen, stream, live } = gateway([home({ tickets: [waiting("old"), waiting("kept")] }), home({ tickets: [waiting("kept")] })]);
  (await stream(1)).send(...ready(0));
  await eventually(() => live.state === "open");
  (await stream(1)).fail();
  (await stream(2)).send(...ready(0));
  await eventually(() => seen.some(([name]) => name === "ticket"));
  assert.deepEqual(seen.filter(([name]) => name === "ticket"), [["ticket", { ...waiting("old"), state: "GONE" }]]);
  client.close();
});

test("a party that changed while the inbox is caught up follows the home screen", async () => {
  const [older, newer] = [{ party: { party_id: "p" }, invitations: [] }, { party: null, invitations: [] }];
  const { client, names, seen, stream } = gateway([home({ position: 1 }), home({ position: 2, party: older })]);
  const first = await stream(1);
  first.send(...ready(1));
  first.send("party", older);
  await eventually(() => names().includes("party"));
  first.fail();
  const second = await stream(2);
  second.send(...ready(1));
  second.send("party", newer);
  second.send("notification", note(2), 2);
  await eventually(() => names().filter((name) => name === "party").length === 2);
  assert.deepEqual(names(), ["home", "party", 2, "home", "party"]);
  assert.deepEqual(seen.filter(([name]) => name === "party").map(([, detail]) => detail), [older, newer]);
  client.close();
});

test("another player in the same browser starts from their own home screen", async () => {
  const { client, names, stream, live } = gateway([home({ position: 2 }), home({ position: 8, user: "other" })]);
  (await stream(1)).send(...ready(2));
  await eventually(() => live.state === "open");
  (await stream(1)).fail();
  const second = await stream(2);
  second.send(...ready(2));
  for (const position of [3, 8, 9]) second.send("notification", note(position), position);
  await eventually(() => live.position === "9");
  assert.deepEqual(names(), ["home", "home", 9]);
  client.close();
});

test("a silent connection is replaced, heartbeats keep it", async () => {
  const { client, stream, streams, live, seen } = gateway([home()], { heartbeat: 40 });
  const first = await stream(1);
  first.send(...ready(0));
  for (let beat = 0; beat < 6; beat += 1) {
    await new Promise((resolve) => setTimeout(resolve, 40));
    first.raw(":\n\n");
  }
  assert.equal(streams.length, 1, "heartbeats are a sign of life");
  const started = performance.now();
  const second = await stream(2);
  const took = performance.now() - started;
  assert.ok(took >= 80 && took < 1000, `${took} ms`);
  second.send(...ready(0));
  await eventually(() => live.state === "open" && seen.length > 3);
  client.close();
});

test("time spent in the client is not the server's silence", async () => {
  const slow = home({ position: 1 });
  const { client, requests } = fakeClient(async ({ path, signal }) => {
    if (path === "/v1/home") {
      await new Promise((resolve) => setTimeout(resolve, 200));
      return slow;
    }
    const stream = eventStream({ heartbeat: 20, signal });
    stream.send(...ready(1, false));
    stream.send("notification", note(2), 2);
    const beat = setInterval(() => stream.raw(":\n\n"), 20);
    signal.addEventListener("abort", () => clearInterval(beat));
    return stream.response;
  });
  const live = client.live();
  await eventually(() => live.position === "2");
  assert.equal(requests.filter(({ path }) => path === "/v1/stream").length, 1);
  client.close();
});

test("the server's wish to reconnect is followed at once, without an error", async () => {
  const { client, seen, stream, live } = gateway([home()]);
  (await stream(1)).send(...ready(0));
  (await stream(1)).send("reconnect", { why: "this process stops" });
  (await stream(2)).send(...ready(0));
  await eventually(() => live.state === "open" && seen.filter(([name]) => name === "home").length === 2);
  assert.deepEqual(seen.filter(([name]) => name === "state").map(([, state]) => state), ["open", "connecting", "open"]);
  client.close();
});

test("an expired token is refreshed and the stream goes on", async () => {
  let refreshes = 0;
  const auth = bearer({ accessToken: "old", refresh: async () => ({ accessToken: `new ${(refreshes += 1)}` }) });
  const { client, stream, live } = gateway([home()], { client: { auth } });
  const first = await stream(1);
  assert.equal(first.authorization, "Bearer old");
  first.send(...ready(0));
  first.send("end", { code: "token_expired", why: "the token has expired" });
  const second = await stream(2);
  assert.deepEqual([second.authorization, refreshes], ["Bearer new 1", 1]);
  second.send(...ready(0));
  await eventually(() => live.state === "open");
  client.close();
});

test("ends of the server are final, unknown ones too", async () => {
  for (const code of ["signed_out", "banned", "finished", "something_new"]) {
    const before = timers();
    const { client, seen, stream, streams, live } = gateway([home()]);
    (await stream(1)).send(...ready(0));
    (await stream(1)).send("end", { code, why: "because" });
    await eventually(() => live.state === "ended");
    assert.deepEqual(seen.at(-1), ["end", { code, why: "because" }]);
    assert.equal(streams.length, 1);
    assert.equal(timers(), before);
    client.close();
  }
});

test("a new sign-in of the same browser starts over", async () => {
  const { client, names, stream, live } = gateway([home({ position: 5 }), home({ position: 1, user: "other" })]);
  (await stream(1)).send(...ready(5));
  (await stream(1)).send("end", { code: "replaced", why: "the same browser signed in again" });
  const second = await stream(2);
  assert.equal(second.after, "1");
  second.send(...ready(1));
  second.send("notification", note(2), 2);
  await eventually(() => live.position === "2");
  assert.deepEqual(names(), ["home", "home", 2]);
  client.close();
});

test("refusals: signed out and forbidden end the stream, 503 and 429 do not", async () => {
  for (const [refusal, code] of [
    [() => problem(401, "unauthenticated"), "signed_out"],
    [() => problem(403, "permission-denied"), "permission-denied"],
    [() => problem(426, "upgrade-required"), "upgrade-required"],
  ]) {
    const { client, seen, live } = gateway([home()], { refuse: refusal });
    await eventually(() => live.state === "ended");
    assert.equal(seen.at(-1)[1].code, code);
    client.close();
  }
  for (const refusal of [() => problem(503, "unavailable"), () => problem(429, "rate-limited")]) {
    const { client, seen, stream, live } = gateway([home()], { refuse: (count) => count < 2 && refusal() });
    (await stream(3)).send(...ready(0));
    await eventually(() => live.state === "open");
    assert.ok(seen.some(([name, state]) => name === "state" && state === "offline"));
    client.close();
  }
});

const polled = (more = {}) => ({ last_event_id: "0", resumed: true, notifications: [], inbox: { unread: 0, unseen: 0 }, tickets: [], seen: "s", ...more });

test("without streaming responses the client polls", async () => {
  const poll = (query, count) => {
    if (count === 1) return polled();
    if (count === 2) return polled({ last_event_id: "2", notifications: [note(1), note(2)], inbox: { unread: 2, unseen: 2 }, tickets: [waiting("t")], party: { party: { leader: "me" }, invitations: [] }, seen: "s2" });
    return count < 4 ? polled({ last_event_id: query.after, inbox: { unread: 2, unseen: 2 }, seen: "s3" }) : new Promise(() => {});
  };
  // A fetch without readable bodies, such as in old engines.
  const refuse = () => Object.defineProperty(new Response("", { headers: { "content-type": "text/event-stream" } }), "body", { value: null });
  const { client, seen, polls, live } = gateway([home()], { refuse, poll });
  await eventually(() => polls.length === 4);
  assert.equal(live.state, "polling");
  const events = seen.filter(([name]) => name !== "state").map(([name, detail]) => [name, detail.position ?? detail.state ?? detail.unread ?? detail.party?.leader]);
  assert.deepEqual(events, [["home", undefined], ["inbox", 0], ["notification", 1], ["notification", 2], ["inbox", 2], ["ticket", "WAITING"], ["party", "me"], ["ticket", "GONE"], ["party", undefined]]);
  assert.deepEqual(polls.map(({ after, seen, wait }) => [after, seen, wait]), [["0", undefined, "0"], ["0", "s", "25"], ["2", "s2", "25"], ["2", "s3", "25"]]);
  client.close();
});

test("a proxy that holds back streams is noticed, and polls are used", async () => {
  const hold = (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  const poll = (query, count) => (count < 2 ? polled({ last_event_id: query.after }) : new Promise(() => {}));
  const { client, streams, polls, live } = gateway([home()], { refuse: hold, poll, client: { attemptTimeout: 60 } });
  await eventually(() => live.state === "polling");
  assert.ok(streams.length <= 2);
  await eventually(() => polls.length === 2);
  client.close();
});

test("while the network is down the client does not change to polls", async () => {
  const network = { isSilent: true };
  const silent = (signal) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  const refuse = (_, { signal }) => network.isSilent && silent(signal);
  const poll = (_, count, signal) => silent(signal);
  const { client, polls, streams, live } = gateway([home()], { refuse, poll, client: { attemptTimeout: 40 } });
  await eventually(() => polls.length >= 1);
  assert.notEqual(live.state, "polling");
  network.isSilent = false;
  const stream = await eventually(() => streams.find(Boolean));
  stream.send(...ready(0));
  await eventually(() => live.state === "open");
  client.close();
});

test("an inbox that was away is read again at a heartbeat", async () => {
  const { client, seen, stream } = gateway([home({ inbox: false }), home({ inbox: false }), home({ position: 3 })]);
  const first = await stream(1);
  assert.equal(first.after, undefined);
  first.send(...ready(3, false));
  first.raw(":\n\n");
  await eventually(() => seen.filter(([name]) => name === "home").length === 3);
  client.close();
});

test("a stored position is resumed from", async () => {
  const { client, names, stream, live } = gateway([home({ position: 6 })], { live: { after: "4" } });
  const first = await stream(1);
  assert.equal(first.after, "4");
  first.send(...ready(4));
  first.send("notification", note(5), 5);
  first.send("notification", note(6), 6);
  await eventually(() => live.home);
  assert.deepEqual(names(), [5, 6, "home"]);
  client.close();
});

test("a drop is followed: newest stock only, the place, and again after joining", async () => {
  const streams = [];
  const { client } = fakeClient(({ path, query, signal }) => {
    if (path.endsWith("/join")) return json({ state: "waiting" });
    const stream = eventStream({ signal });
    streams.push({ ...stream, query });
    return stream.response;
  });
  const follow = client.drops.follow("d", { place: true });
  const seen = record(follow, ["stock", "place", "end"]);
  const first = await eventually(() => streams[0]);
  assert.deepEqual(first.query, { place: "true" });
  first.send("place", { state: "not_joined" });
  for (const version of [2, 1, 3]) first.send("stock", { version }, version);
  await eventually(() => seen.length === 3);
  await client.drops.join("d");
  const second = await eventually(() => streams[1]);
  second.send("stock", { version: 3 }, 3);
  second.send("place", { state: "waiting" });
  second.send("end", { code: "finished", why: "no more events" });
  await eventually(() => follow.state === "ended");
  assert.deepEqual(
    seen.map(([name, detail]) => [name, detail.version ?? detail.state ?? detail.code]),
    [["place", "not_joined"], ["stock", 2], ["stock", 3], ["place", "waiting"], ["end", "finished"]],
  );
  client.close();
});

test("after `close` the next stream is a new one, at once", async () => {
  const { client, stream, live } = gateway([home(), home()]);
  (await stream(1)).send(...ready(0));
  await eventually(() => live.state === "open");
  assert.equal(client.live(), live);
  live.close();
  const next = client.live({ after: "0" });
  assert.notEqual(next, live);
  (await stream(2)).send(...ready(0));
  await eventually(() => next.state === "open");
  assert.equal(live.state, "ended");
  client.close();
});

test("closed streams leave no timer and no request", async () => {
  const before = timers();
  const { client, stream, live } = gateway([home()]);
  (await stream(1)).send(...ready(0));
  await eventually(() => live.state === "open");
  live.close();
  await eventually(() => live.state === "ended");
  assert.equal(timers(), before);
  client.close();
  const { client: other, live: waiting } = gateway([home()], { refuse: () => problem(503, "unavailable", { "retry-after": "30" }) });
  await eventually(() => waiting.state === "offline");
  other.close();
  await eventually(() => waiting.state === "ended");
  assert.equal(timers(), before);
});
