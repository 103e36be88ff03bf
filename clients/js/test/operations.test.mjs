import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

import { NOT_CALLED, calls, openapi, operations } from "../scripts/operations.mjs";
import { changes, reads } from "../src/calls.js";

const read = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
const KNOWN = new Set(
  read("../src/api.d.ts").split("export type ProblemType =")[1].split(";")[0].match(/"[^"]+"/g).map((name) => name.slice(1, -1)),
);

test("every operation has one call, or a reason not to have one", () => {
  const called = calls().map(([, { id }]) => id);
  assert.equal(new Set(called).size, called.length, "an operation has two calls");
  const all = operations.map(({ id }) => id).sort();
  assert.deepEqual([...called, ...Object.keys(NOT_CALLED)].sort(), all);
});

test("each call passes on what its operation takes, and reads are no changes", () => {
  for (const [name, { method, params, query, hasBody }] of calls()) {
    const build = reads[name] ?? changes[name];
    const ids = params.map((param) => `the ${param}`);
    // Behind the ids in the path comes the body or the query. The options of the call follow.
    const rest = hasBody || query.length ? { sent: name } : undefined;
    assert.equal(build.length, ids.length + (rest ? 1 : 0), `${name}: the number of arguments`);
    assert.ok(!(hasBody && query.length), `${name} needs two arguments behind the ids`);
    const request = build(...ids, ...(rest ? [rest] : []));
    assert.deepEqual([request.body, request.query], hasBody ? [rest, undefined] : [undefined, rest], name);
    // In their order.
    const places = ids.map((id) => request.path.indexOf(encodeURIComponent(id)));
    assert.ok(places.every((place, index) => place > (places[index - 1] ?? 0)), `${name}: ${request.path}`);
    assert.equal(name in reads, method === "GET", name);
  }
});

test("every problem type that the document names for players is known", () => {
  const called = new Set(calls().map(([, { id }]) => id));
  const named = Object.values(openapi.paths).flatMap((methods) =>
    Object.values(methods).filter(({ operationId }) => called.has(operationId)).flatMap((operation) =>
      [...JSON.stringify(operation.responses).matchAll(/`([a-z]+(?:[:-][a-z]+)+)`/g)].map(([, type]) => type),
    ),
  );
  assert.ok(named.length > 10 && named.includes("no-ready-check"), `${named}`);
  assert.deepEqual(named.filter((type) => !KNOWN.has(type)), []);
});

test("every problem type that the client and the lobby decide by is known", () => {
  const sources = ["../src/", "../../../examples/lobby/"].flatMap((folder) =>
    readdirSync(new URL(folder, import.meta.url)).filter((file) => file.endsWith(".js")).map((file) => read(`${folder}${file}`)),
  );
  const decided = sources.flatMap((text) =>
    [...text.matchAll(/(?:error\.code === |isProblem\(\w+, )"([a-z:-]+)"/g), ...text.matchAll(/"(drops:[a-z-]+)"/g)].map(([, type]) => type),
  );
  assert.ok(decided.includes("conflict") && decided.length > 3, `${decided}`);
  assert.deepEqual(decided.filter((type) => !KNOWN.has(type)), []);
});
