import assert from "node:assert/strict";
import { test } from "node:test";

import { NetworkError, PlayhouseError, ProblemError, isProblem } from "../src/index.js";
import { fakeClient, json, problem } from "./fake.mjs";

async function errorOf(response) {
  const { client } = fakeClient(() => response);
  const error = await client.me().catch((error) => error);
  client.close();
  return error;
}

test("a problem document becomes a typed error", async () => {
  const error = await errorOf(problem(409, "drops:sold-out", {}, { errors: [{ field: "quantity" }] }));
  assert.ok(error instanceof ProblemError && error instanceof PlayhouseError);
  assert.equal(error.name, "ProblemError");
  assert.deepEqual(
    [error.type, error.code, error.status, error.title, error.detail, error.requestId, error.errors],
    ["urn:playhouse:problem:drops:sold-out", "drops:sold-out", 409, "Title", "Detail.", "r1", [{ field: "quantity" }]],
  );
  assert.ok(isProblem(error) && isProblem(error, "drops:sold-out"));
  assert.ok(!isProblem(error, "conflict") && !isProblem(new NetworkError("x")));
});

test("an unknown type is kept as it is", async () => {
  const ours = await errorOf(problem(409, "arena:full"));
  assert.equal(ours.code, "arena:full");
  const foreign = await errorOf(json({ type: "https://example.com/full", title: "Full", status: 409 }, 409));
  assert.deepEqual([foreign.type, foreign.code], ["https://example.com/full", "https://example.com/full"]);
  assert.ok(isProblem(foreign, "https://example.com/full"));
});

test("further members are kept", async () => {
  const error = await errorOf(problem(426, "upgrade-required", {}, { update_url: "https://u", min_version: "2.0.0" }));
  assert.deepEqual(error.members, { update_url: "https://u", min_version: "2.0.0" });
});

test("a response that is no problem document is an error with its status", async () => {
  for (const body of ["<html>nope</html>", "", "null", "3"]) {
    const error = await errorOf(new Response(body, { status: 403, headers: { "x-request-id": "r2" } }));
    assert.deepEqual([error.code, error.status, error.requestId], ["http-403", 403, "r2"], body);
  }
});

test("Retry-After is read as seconds and as a date", async () => {
  const options = { deadline: 1 };
  for (const [value, check] of [
    ["7", (wait) => wait === 7000],
    [new Date(Date.now() + 60_000).toUTCString(), (wait) => wait > 50_000 && wait <= 60_000],
    ["soon", (wait) => wait === undefined],
    [new Date(0).toUTCString(), (wait) => wait === 0],
  ]) {
    const { client } = fakeClient(() => problem(503, "unavailable", { "retry-after": value }));
    const error = await client.me(options).catch((error) => error);
    assert.ok(check((error.cause ?? error).retryAfter), `${value}: ${error} ${error.retryAfter}`);
    client.close();
  }
});
