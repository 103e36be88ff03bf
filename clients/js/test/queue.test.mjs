import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { fileStorage } from "../src/file-storage.js";
import { QueueFullError, memoryStorage } from "../src/index.js";
import { USER, eventStream, eventually, fakeClient, json, problem, record, timers } from "./fake.mjs";

// A gateway that applies each key once, and can be cut off. `loseAnswers` applies requests and loses the responses.
function gateway() {
  const state = { isDown: false, loseAnswers: false, user: USER, applied: [], attempts: 0 };
  const answers = new Map();
  const answer = ({ method, path, headers, body }) => {
    if (state.isDown) throw new TypeError("fetch failed");
    if (path === "/v1/me") return { user_id: state.user };
    state.attempts += 1;
    const key = headers["idempotency-key"] ?? `${method} ${path}`;
    if (!answers.has(key)) {
      answers.set(key, { path, body: body && JSON.parse(body), as: state.user });
      state.applied.push(answers.get(key));
    }
    if (state.loseAnswers) throw new TypeError("fetch failed");
    return state.refusal?.(path) ?? json({ done: path });
  };
  return { state, answer };
}

const paths = (state) => state.applied.map(({ path, body }) => body?.n ?? path);
const action = (n) => ({ method: "post", path: "/v1/arena/enter", body: { n } });

test("actions are sent in order, by name and as requests", async () => {
  const { state, answer } = gateway();
  const { client } = fakeClient(answer);
  const seen = record(client.queue, ["sent", "failed", "expired", "size"]);
  const first = client.queue.add("inbox.mark", [{ mark: "read", up_to: 3 }]);
  client.queue.add("drops.reserve", ["d", { quantity: 1, admission: "a" }]);
  client.queue.add(action(1));
  client.queue.add("tickets.cancel", ["t"]);
  assert.deepEqual(client.queue.items().map(({ name, method }) => [name, method]), [["inbox.mark", "POST"], ["drops.reserve", "POST"], [undefined, "POST"], ["tickets.cancel", "DELETE"]]);
  await client.queue.flush();
  assert.deepEqual(paths(state), ["/v1/notifications/mark", "/v1/drops/d/reservations", 1, "/v1/matchmaking/tickets/t"]);
  const sent = seen.filter(([name]) => name === "sent");
  assert.equal(sent.length, 4);
  assert.deepEqual([sent[0][1].action.id, sent[0][1].result], [first.id, { done: "/v1/notifications/mark" }]);
  assert.deepEqual(seen.filter(([name]) => name === "size").map(([, size]) => size), [1, 2, 3, 4, 3, 2, 1, 0]);
  assert.throws(() => client.queue.add("me", []), TypeError);
  client.close();
});

test("a queued join of a drop reconnects its streams, which then have the place", async () => {
  const streams = [];
  const { client } = fakeClient(({ path, signal }) => {
    if (path === "/v1/me") return { user_id: USER };
    if (!path.endsWith("/stream")) return { state: "waiting" };
    streams.push(eventStream({ signal }));
    return streams.at(-1).response;
  });
  for (const [number, join] of [["drops.join", ["d/1"]], [{ method: "post", path: "/v1/drops/d%2F1/join" }]].entries()) {
    const follow = client.drops.follow("d/1", { place: true });
    await eventually(() => streams.length === 2 * number + 1);
    streams.at(-1).send("place", { state: "not_joined" });
    await eventually(() => follow.state === "open");
    client.queue.add(...join);
    await client.queue.flush();
    await eventually(() => streams.length === 2 * number + 2);
    follow.close();
    await eventually(() => follow.state === "ended");
  }
  client.close();
});

test("a page that ends between the server's commit and the response sends each action once", async () => {
  const { state, answer } = gateway();
  const storage = memoryStorage();
  state.loseAnswers = true;
  const { client } = fakeClient(answer, { storage });
  const keys = [1, 2, 3].map((n) => client.queue.add(action(n)).key);
  await eventually(() => state.attempts >= 1);
  client.close();
  assert.equal(client.queue.size, 3, "nothing was removed without a response");
  state.loseAnswers = false;
  const { client: next, requests } = fakeClient(answer, { storage });
  // The queue of an earlier page starts by itself.
  await eventually(() => next.queue.size === 0);
  assert.deepEqual(paths(state), [1, 2, 3]);
  const sent = requests.filter(({ method }) => method === "POST").map(({ headers }) => headers["idempotency-key"]);
  assert.deepEqual(sent, keys, "the keys are those of the first page");
  next.close();
});

test("actions wait while the gateway cannot be reached, and are sent afterwards", async () => {
  const { state, answer } = gateway();
  state.isDown = true;
  const { client } = fakeClient(answer, { deadline: 100 });
  client.queue.add(action(1));
  client.queue.add(action(2));
  await client.queue.flush();
  assert.deepEqual([client.queue.size, paths(state)], [2, []]);
  state.isDown = false;
  await eventually(() => client.queue.size === 0);
  assert.deepEqual(paths(state), [1, 2]);
  client.close();
});

test("a refused action is reported and does not hold up the next", async () => {
  const { state, answer } = gateway();
  const { client } = fakeClient(answer);
  state.refusal = (path) => path.includes("reservations") && problem(409, "drops:sold-out");
  const seen = record(client.queue, ["sent", "failed"]);
  client.queue.add("drops.reserve", ["d", { quantity: 1, admission: "a" }]);
  client.queue.add(action(1));
  await client.queue.flush();
  assert.deepEqual(seen.map(([name, { error }]) => [name, error?.code]), [["failed", "drops:sold-out"], ["sent", undefined]]);
  client.close();
});

test("the queue is bounded", async () => {
  const { state, answer } = gateway();
  state.isDown = true;
  const { client } = fakeClient(answer, { queue: { max: 3 }, deadline: 50 });
  for (let n = 0; n < 3; n += 1) client.queue.add(action(n));
  assert.throws(() => client.queue.add(action(3)), QueueFullError);
  const [first] = client.queue.items();
  assert.ok(client.queue.remove(first.id));
  assert.ok(!client.queue.remove(first.id));
  client.queue.add(action(3));
  assert.deepEqual(client.queue.items().map(({ body }) => body.n), [1, 2, 3]);
  client.close();
});

test("actions expire, by an own time or the queue's", async () => {
  const { state, answer } = gateway();
  state.isDown = true;
  const clock = { now: 1_000_000 };
  const { client } = fakeClient(answer, { queue: { expiresIn: 60_000 }, now: () => clock.now, deadline: 50 });
  const seen = record(client.queue, ["expired", "sent"]);
  client.queue.add(action(1));
  client.queue.add(action(2), { expiresIn: 120_000 });
  clock.now += 90_000;
  state.isDown = false;
  await client.queue.flush();
  assert.deepEqual(seen.map(([name, { action }]) => [name, action.body.n]), [["expired", 1], ["sent", 2]]);
  assert.deepEqual(paths(state), [2]);
  client.close();
});

test("an action without an end does not expire", async () => {
  const { state, answer } = gateway();
  state.isDown = true;
  const clock = { now: 1_000_000 };
  const storage = memoryStorage();
  const { client } = fakeClient(answer, { storage, queue: { expiresIn: Infinity }, now: () => clock.now, deadline: 50 });
  const seen = record(client.queue, ["expired", "sent"]);
  client.queue.add(action(1));
  assert.equal(client.queue.add(action(2), { expiresIn: Infinity }).expiresAt, undefined);
  clock.now += 1e12;
  state.isDown = false;
  await client.queue.flush();
  assert.deepEqual(seen.map(([name, { action }]) => [name, action.body.n]), [["sent", 1], ["sent", 2]]);
  client.close();
});

test("numbers that cannot be kept are refused", () => {
  const { answer } = gateway();
  for (const wrong of [0, -1, NaN, "100", null]) {
    for (const queue of [{ max: wrong }, { expiresIn: wrong }]) assert.throws(() => fakeClient(answer, { queue }), RangeError);
  }
  assert.throws(() => fakeClient(answer, { queue: { max: 1.5 } }), RangeError);
  const { client } = fakeClient(answer, { queue: { max: Infinity } });
  for (const expiresIn of [0, -1, NaN, "100"]) assert.throws(() => client.queue.add(action(1), { expiresIn }), RangeError);
  assert.equal(client.queue.size, 0);
  client.close();
});

test("an action whose first attempt is still being applied stays, as long as that takes", async () => {
  const { state, answer } = gateway();
  const { client } = fakeClient(answer, { deadline: 200 });
  const seen = record(client.queue, ["sent", "failed"]);
  // Other routes have conflicts of other kinds.
  state.refusal = () => problem(409, "conflict");
  client.queue.add("tickets.create", [{ queue: "duel" }]);
  client.queue.add("drops.reserve", ["d", { quantity: 1, admission: "a" }]);
  await client.queue.flush();
  assert.deepEqual(seen.map(([name, { action, error }]) => [name, action.name, error?.code]), [["failed", "tickets.create", "conflict"]]);
  assert.deepEqual(client.queue.items().map(({ name }) => name), ["drops.reserve"]);
  state.refusal = undefined;
  await eventually(() => client.queue.size === 0);
  assert.deepEqual(seen.map(([name]) => name), ["failed", "sent"]);
  client.close();
});

test("an action is never sent as another player", async () => {
  const { state, answer } = gateway();
  const storage = memoryStorage();
  const { client } = fakeClient(answer, { storage, deadline: 50 });
  await client.me();
  state.isDown = true;
  assert.equal(client.queue.add(action("of ada")).userId, USER);
  client.close();
  // Bob signs in at the same browser.
  Object.assign(state, { isDown: false, user: "bob" });
  const { client: bobs } = fakeClient(answer, { storage });
  await bobs.queue.flush();
  assert.deepEqual([bobs.queue.size, paths(state)], [0, []]);
  bobs.queue.add(action("of bob"));
  await bobs.queue.flush();
  bobs.close();
  state.user = USER;
  const { client: again } = fakeClient(answer, { storage });
  await again.me();
  await again.queue.flush();
  assert.deepEqual(state.applied.map(({ body, as }) => [body.n, as]), [["of bob", "bob"], ["of ada", USER]]);
  again.close();
});

test("an action that is added at any moment of a run is sent without another trigger", async () => {
  const { state, answer } = gateway();
  const { client } = fakeClient(answer);
  client.queue.add(action(0));
  for (let n = 1; n <= 40; n += 1) {
    // A different number of steps of the event loop after the previous one.
    for (let step = 0; step < n; step += 1) await Promise.resolve();
    client.queue.add(action(n));
  }
  await eventually(() => state.applied.length === 41);
  assert.deepEqual(paths(state), Array.from({ length: 41 }, (_, n) => n));
  client.close();
});

test("a signed-out player's actions wait for the next sign-in", async () => {
  const { state, answer } = gateway();
  let isSignedOut = true;
  const { client } = fakeClient((request) => (isSignedOut ? problem(401, "unauthenticated") : answer(request)));
  client.queue.add(action(1));
  await client.queue.flush();
  assert.equal(client.queue.size, 1);
  isSignedOut = false;
  await client.queue.flush();
  assert.deepEqual(paths(state), [1]);
  client.close();
});

test("entries that cannot be read are removed", async () => {
  const storage = memoryStorage();
  storage.setItem("playhouse:http://gateway.test:queue:1", "{");
  storage.setItem("other", "{");
  const { client } = fakeClient(gateway().answer, { storage });
  assert.equal(client.queue.size, 0);
  assert.deepEqual([storage.length, storage.getItem("other")], [1, "{"]);
  client.close();
});

test("two clients of one storage keep each other's actions", async () => {
  const { state, answer } = gateway();
  state.isDown = true;
  const storage = memoryStorage();
  const [one, two] = [1, 2].map(() => fakeClient(answer, { storage, deadline: 50 }).client);
  one.queue.add(action(1));
  two.queue.add(action(2));
  assert.equal(one.queue.size, 2);
  state.isDown = false;
  await Promise.all([one.queue.flush(), two.queue.flush()]);
  await eventually(() => one.queue.size === 0);
  assert.deepEqual(paths(state).sort(), [1, 2]);
  one.close();
  two.close();
});

test("a file keeps the queue across programs", async () => {
  const folder = mkdtempSync(join(tmpdir(), "playhouse-"));
  const path = join(folder, "queue.json");
  try {
    const { state, answer } = gateway();
    state.isDown = true;
    const { client } = fakeClient(answer, { storage: fileStorage(path), deadline: 50 });
    client.queue.add(action(1));
    client.close();
    state.isDown = false;
    const { client: next } = fakeClient(answer, { storage: fileStorage(path) });
    await eventually(() => next.queue.size === 0);
    assert.deepEqual(paths(state), [1]);
    next.close();
    assert.equal([...Array(fileStorage(path).length).keys()].filter((at) => fileStorage(path).key(at).includes(":queue:")).length, 0);
    writeFileSync(path, "not JSON");
    assert.throws(() => fileStorage(path), SyntaxError);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("a closed client leaves no timer, and its queue in the storage", async () => {
  const before = timers();
  const { state, answer } = gateway();
  state.isDown = true;
  const { client } = fakeClient(answer, { deadline: 50 });
  client.queue.add(action(1));
  await client.queue.flush();
  assert.ok(timers() > before, "another attempt is planned");
  client.close();
  assert.equal(timers(), before);
  assert.equal(client.queue.size, 1);
});
