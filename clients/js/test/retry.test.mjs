import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { CancelledError, DeadlineError, NetworkError, ProblemError } from "../src/index.js";
import { delay, repeatability } from "../src/retry.js";
import { eventually, fakeClient, json, problem, timers } from "./fake.mjs";

const lost = () => {
  throw new TypeError("fetch failed");
};

test("every POST of the gateway is known to be repeatable, or deliberately is not", () => {
  const openapi = JSON.parse(readFileSync(new URL("../../../docs/reference/openapi-gateway.json", import.meta.url), "utf8"));
  const posts = Object.entries(openapi.paths).filter(([, methods]) => methods.post || methods.patch);
  const rules = posts.map(([path, { post }]) => {
    const rule = repeatability("POST", path.replace(/\{\w+\}/g, "x"), false);
    const takesKey = post.parameters?.some(({ name }) => name === "Idempotency-Key") ?? false;
    assert.equal(rule.isKeyed, takesKey, path);
    return [path, rule.isRepeatable];
  });
  // A member who was removed cannot be removed again. Payment providers send webhooks, and have retries of their own.
  const others = rules.filter(([, isRepeatable]) => !isRepeatable).map(([path]) => path);
  assert.deepEqual(others, ["/v1/parties/kick", "/v1/payments/webhook"]);
});

test("a lost response is repeated with the same key", async () => {
  const { client, requests } = fakeClient((_, count) => (count < 3 ? lost() : json({ reservation_id: "r" }, 201)));
  const answer = await client.drops.reserve("d", { quantity: 1, admission: "a" });
  assert.equal(answer.reservation_id, "r");
  const keys = requests.map(({ headers }) => headers["idempotency-key"]);
  assert.equal(keys.length, 3);
  assert.equal(new Set(keys).size, 1);
  assert.match(keys[0], /^[0-9a-f]{32}$/);
  await client.drops.reserve("d", { quantity: 1, admission: "a" });
  assert.notEqual(requests.at(-1).headers["idempotency-key"], keys[0], "each call has its own key");
  client.close();
});

test("an unknown POST is not repeated unless its caller gives a key", async () => {
  const { client, requests } = fakeClient(lost);
  await assert.rejects(client.request("POST", "/v1/arena/enter", { deadline: 2000 }), NetworkError);
  assert.equal(requests.length, 1);
  const { client: other, requests: more } = fakeClient((_, count) => (count < 2 ? lost() : {}));
  await other.request("POST", "/v1/arena/enter", { idempotencyKey: "mine" });
  assert.deepEqual(more.map(({ headers }) => headers["idempotency-key"]), ["mine", "mine"]);
  client.close();
  other.close();
});

test("an unknown POST is repeated after 429, which was refused before it was handled", async () => {
  const { client, requests } = fakeClient((_, count) => (count < 2 ? problem(429, "rate-limited") : {}));
  await client.request("POST", "/v1/arena/enter");
  assert.equal(requests.length, 2);
  client.close();
});

test("refusals are not repeated", async () => {
  for (const [status, code] of [[400, "invalid-argument"], [403, "permission-denied"], [409, "drops:sold-out"], [500, "internal"]]) {
    const { client, requests } = fakeClient(() => problem(status, code));
    await assert.rejects(client.drops.reserve("d", { quantity: 1, admission: "a" }), { code });
    assert.equal(requests.length, 1, code);
    client.close();
  }
});

test("a conflict of a keyed request is repeated: the first attempt is still being applied", async () => {
  const { client, requests } = fakeClient((_, count) => (count < 2 ? problem(409, "conflict") : json({}, 201)));
  await client.drops.reserve("d", { quantity: 1, admission: "a" });
  assert.equal(requests.length, 2);
  const { client: other, requests: more } = fakeClient(() => problem(409, "conflict"));
  await assert.rejects(other.tickets.create({ queue: "duel" }), { code: "conflict" });
  assert.equal(more.length, 1, "without a key it is an answer");
  client.close();
  other.close();
});

test("Retry-After is kept, with a random addition", async () => {
  const { client, requests } = fakeClient((_, count) => (count < 2 ? problem(503, "unavailable", { "retry-after": "1" }) : {}));
  const started = performance.now();
  await client.me();
  const took = performance.now() - started;
  assert.ok(took >= 990 && took < 1900, `${took} ms`);
  assert.equal(requests.length, 2);
  client.close();
  assert.equal(delay(0, { retryAfter: 4000 }, () => 0), 4000);
  assert.equal(delay(0, { retryAfter: 4000 }, () => 1), 5000);
  const waits = [0, 1, 2, 3, 9].map((attempt) => [delay(attempt, {}, () => 0), delay(attempt, {}, () => 1)]);
  assert.deepEqual(waits, [[62.5, 250], [125, 500], [250, 1000], [500, 2000], [1250, 5000]]);
});

test("a wait that would pass the deadline is not begun", async () => {
  const { client } = fakeClient(() => problem(503, "unavailable", { "retry-after": "60" }));
  const started = performance.now();
  const error = await client.me().catch((error) => error);
  assert.ok(error instanceof ProblemError && error.retryAfter === 60_000, String(error));
  assert.ok(performance.now() - started < 1000);
  client.close();
});

test("a call ends at its deadline, with the last error as its cause", async () => {
  const { client } = fakeClient(({ signal }, count) =>
    count < 2 ? lost() : new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
  );
  const error = await client.me({ deadline: 400 }).catch((error) => error);
  assert.ok(error instanceof DeadlineError, String(error));
  assert.ok(error.cause instanceof NetworkError);
  client.close();
});

test("a deadline without an end, or longer than a timer, does not end the call", async () => {
  for (const deadline of [Infinity, 1e10]) {
    const { client, requests } = fakeClient((_, count) => (count < 3 ? lost() : { user_id: "u" }), { deadline });
    assert.equal((await client.me()).user_id, "u");
    assert.equal((await client.me({ deadline })).user_id, "u");
    assert.equal(requests.length, 4);
    client.close();
    const { client: refused, requests: once } = fakeClient(() => problem(409, "drops:sold-out"), { deadline });
    await assert.rejects(refused.drops.reserve("d", { quantity: 1, admission: "a" }), ProblemError);
    assert.equal(once.length, 1);
    refused.close();
  }
});

test("a deadline that nothing can keep is refused before a request is sent", async () => {
  for (const deadline of [0, -1, NaN, "100"]) {
    assert.throws(() => fakeClient(lost, { deadline }), RangeError);
    assert.throws(() => fakeClient(lost, { attemptTimeout: deadline }), RangeError);
    const { client, requests } = fakeClient(lost);
    await assert.rejects(client.me({ deadline }), RangeError);
    assert.equal(requests.length, 0);
    client.close();
  }
});

test("an attempt without an answer is given up and repeated", async () => {
  const silent = ({ signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  const { client, requests } = fakeClient((request, count) => (count < 2 ? silent(request) : { user_id: "u" }), { attemptTimeout: 50 });
  assert.equal((await client.me()).user_id, "u");
  assert.equal(requests.length, 2);
  client.close();
});

test("a signal cancels a call in flight and a call that waits", async () => {
  const before = timers();
  for (const answer of [
    ({ signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
    () => problem(503, "unavailable", { "retry-after": "20" }),
  ]) {
    const { client, requests } = fakeClient(answer);
    const controller = new AbortController();
    const call = client.me({ signal: controller.signal });
    await eventually(() => requests.length === 1);
    await new Promise((resolve) => setTimeout(resolve, 20));
    controller.abort();
    await assert.rejects(call, CancelledError);
    assert.equal(timers(), before);
    await assert.rejects(client.me({ signal: controller.signal }), CancelledError);
    assert.equal(requests.length, 1, "a cancelled call sends nothing");
    client.close();
  }
});

test("close ends pending calls and leaves no timer", async () => {
  const before = timers();
  const { client } = fakeClient(() => problem(503, "unavailable", { "retry-after": "20" }));
  const calls = [client.me(), client.home(), client.drops.list()].map((call) => call.catch((error) => error));
  await new Promise((resolve) => setTimeout(resolve, 20));
  client.close();
  for (const error of await Promise.all(calls)) assert.ok(error instanceof CancelledError, String(error));
  assert.equal(timers(), before);
  await assert.rejects(client.me(), CancelledError);
});

test("requests say who the client is", async () => {
  const options = { platform: "web", version: "1.2.3", language: "de" };
  const { client, requests } = fakeClient(() => ({}), options);
  await client.entitlements({ account_id: "a b", all: true, after: undefined });
  const { headers, path, query } = requests[0];
  assert.deepEqual([headers["x-client-platform"], headers["x-client-version"], headers["accept-language"]], ["web", "1.2.3", "de"]);
  assert.deepEqual([path, query], ["/v1/entitlements", { account_id: "a b", all: "true" }]);
  await client.tickets.get("a/b");
  assert.equal(requests[1].path, "/v1/matchmaking/tickets/a%2Fb");
  client.close();
});
