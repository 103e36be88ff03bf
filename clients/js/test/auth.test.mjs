import assert from "node:assert/strict";
import { test } from "node:test";

import { NetworkError, Playhouse, SignedOutError, bearer, browserSession } from "../src/index.js";
import { fakeClient, json, problem } from "./fake.mjs";

const HOUR = 3_600_000;
const TOKEN_ENDPOINT = "http://gateway.test/issuer/token";

// Returns a JWT for five minutes that expires at a time in milliseconds.
const jwt = (expiresAt) => `h.${btoa(JSON.stringify({ iat: expiresAt / 1000 - 300, exp: expiresAt / 1000 }))}.s`;

// An issuer and a gateway that accepts only the newest token. Their clock is `clock.now`.
function issuer({ life = 300_000, clock = { now: Date.now() }, refuse } = {}) {
  const state = { refreshes: 0, current: undefined, refresh: "r0" };
  const answer = async ({ path, body, headers }) => {
    const date = { date: new Date(clock.now).toUTCString() };
    if (path === "/issuer/token") {
      state.refreshes += 1;
      await new Promise((resolve) => setTimeout(resolve, 20));
      const refused = refuse?.(state);
      if (refused) return refused;
      assert.equal(body.get("refresh_token"), state.refresh, "a refresh token is used once");
      state.refresh = `r${state.refreshes}`;
      state.current = jwt(clock.now + life) + state.refreshes;
      return json({ access_token: state.current, refresh_token: state.refresh, expires_in: life / 1000 });
    }
    if (headers.authorization !== `Bearer ${state.current}`) return problem(401, "unauthenticated", date);
    return json({ user_id: "u" }, 200, date);
  };
  return { state, answer, clock };
}

test("a hundred parallel calls on an expired token refresh it once", async () => {
  const { state, answer } = issuer();
  const seen = [];
  const auth = bearer({ accessToken: jwt(Date.now() - 1000), refreshToken: "r0", tokenEndpoint: TOKEN_ENDPOINT, onTokens: (tokens) => seen.push(tokens) });
  const { client } = fakeClient(answer, { auth });
  const answers = await Promise.all(Array.from({ length: 100 }, () => client.me()));
  assert.equal(answers.length, 100);
  assert.equal(state.refreshes, 1);
  assert.deepEqual(seen.map(({ refreshToken }) => refreshToken), ["r1"]);
  assert.ok(seen[0].expiresAt > Date.now());
  client.close();
});

test("a hundred parallel calls with a token that the gateway refuses refresh it once", async () => {
  const { state, answer } = issuer();
  // By its own time the token is valid for an hour, so that only the gateway knows better.
  const auth = bearer({ accessToken: jwt(Date.now() + HOUR), refreshToken: "r0", tokenEndpoint: TOKEN_ENDPOINT });
  const { client } = fakeClient(answer, { auth });
  await Promise.all(Array.from({ length: 100 }, () => client.me()));
  assert.equal(state.refreshes, 1);
  client.close();
});

test("a token is refreshed before it expires, by the server's clock", async () => {
  // The player's clock is an hour ahead, and an hour behind.
  for (const offset of [HOUR, -HOUR]) {
    const { state, answer, clock } = issuer();
    state.current = jwt(clock.now + 300_000);
    const auth = bearer({ accessToken: state.current, refreshToken: "r0", tokenEndpoint: TOKEN_ENDPOINT });
    const { client, requests } = fakeClient(answer, { auth, now: () => clock.now + offset });
    await client.me();
    assert.ok(Math.abs(client.serverNow() - clock.now) <= 1000, String(client.serverNow() - clock.now));
    const first = state.refreshes;
    // Without a response yet, a clock that is ahead may cost a refresh.
    assert.ok(first <= 1);
    clock.now += 200_000;
    await client.me();
    assert.equal(state.refreshes, first, "still valid for 100 s");
    clock.now += 75_000;
    await client.me();
    assert.equal(state.refreshes, first + 1, "25 s before the end");
    assert.equal(requests.filter(({ path }) => path === "/v1/me").length, 3, "no request was refused");
    client.close();
  }
});

test("a refused refresh token means signed out, and is not sent again", async () => {
  const refuse = () => json({ error: "invalid_grant", error_description: "It was used." }, 400);
  const { state, answer } = issuer({ refuse });
  const auth = bearer({ accessToken: jwt(Date.now() - 1), refreshToken: "r0", tokenEndpoint: TOKEN_ENDPOINT });
  const { client } = fakeClient(answer, { auth });
  for (let call = 0; call < 3; call += 1) {
    const error = await client.me().catch((error) => error);
    assert.ok(error instanceof SignedOutError, String(error));
  }
  assert.equal(state.refreshes, 1);
  client.close();
});

test("an issuer that is away delays calls and does not sign the player out", async () => {
  const refuse = ({ refreshes }) => {
    if (refreshes === 1) throw new TypeError("fetch failed");
    return refreshes === 2 ? json({}, 503) : undefined;
  };
  const { state, answer } = issuer({ refuse });
  const auth = bearer({ accessToken: jwt(Date.now() - 1), refreshToken: "r0", tokenEndpoint: TOKEN_ENDPOINT });
  const { client } = fakeClient(answer, { auth });
  // Also a change that must not be repeated: it was not sent yet.
  await client.request("POST", "/v1/arena/enter");
  assert.equal(state.refreshes, 3);
  client.close();
});

test("a token that is about to expire is used while the issuer is away", async () => {
  const { state, answer, clock } = issuer({ refuse: () => json({}, 503) });
  state.current = jwt(clock.now + 300_000);
  const auth = bearer({ accessToken: state.current, refreshToken: "r0", tokenEndpoint: TOKEN_ENDPOINT });
  const { client } = fakeClient(answer, { auth, now: () => clock.now });
  await client.me();
  clock.now += 290_000;
  await client.me();
  assert.equal(state.refreshes, 1, "a refresh was tried");
  client.close();
});

test("refresh can be a function", async () => {
  let calls = 0;
  const auth = bearer({
    async refresh(tokens) {
      calls += 1;
      assert.equal(tokens.accessToken, undefined);
      return { accessToken: "new" };
    },
  });
  const { client, requests } = fakeClient(() => ({}), { auth });
  await Promise.all([client.me(), client.home().catch(() => {})]);
  assert.equal(calls, 1);
  assert.equal(requests[0].headers.authorization, "Bearer new");
  client.close();
  const failing = bearer({ refresh: () => Promise.reject(new Error("no network")) });
  const { client: other } = fakeClient(() => ({}), { auth: failing });
  await assert.rejects(other.me({ deadline: 50 }), NetworkError);
  other.close();
});

test("a call without a way to refresh is signed out", async () => {
  const { client } = fakeClient(() => problem(401, "unauthenticated"));
  await assert.rejects(client.me(), SignedOutError);
  client.close();
});

test("a cancelled call does not cancel the refresh of others", async () => {
  const { state, answer } = issuer();
  const auth = bearer({ accessToken: jwt(Date.now() - 1), refreshToken: "r0", tokenEndpoint: TOKEN_ENDPOINT });
  const { client } = fakeClient(answer, { auth });
  const controller = new AbortController();
  const cancelled = client.me({ signal: controller.signal });
  const other = client.me();
  controller.abort();
  await assert.rejects(cancelled, { name: "CancelledError" });
  await other;
  assert.equal(state.refreshes, 1);
  client.close();
});

test("a session sends its cookie, and the CSRF header with changes", async () => {
  const sent = [];
  const fetch = async (url, init) => {
    sent.push([init.credentials, init.headers["x-playhouse-csrf"], init.headers.authorization]);
    return json({});
  };
  const client = new Playhouse({ baseUrl: "http://gateway.test", auth: browserSession(), fetch });
  await client.me();
  await client.inbox.mark({ mark: "read", up_to: 1 });
  assert.deepEqual(sent, [["include", undefined, undefined], ["include", "1", undefined]]);
  client.close();
  const refused = new Playhouse({ baseUrl: "http://gateway.test", fetch: async () => problem(401, "unauthenticated") });
  await assert.rejects(refused.me(), SignedOutError);
  refused.close();
});
