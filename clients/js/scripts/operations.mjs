// Which operation of the gateway's OpenAPI document each call of the client sends. For the generator of types, and for tests.

import { readFileSync } from "node:fs";

import { changes, reads } from "../src/calls.js";

// The operations that are no calls of the client, each with the reason.
export const NOT_CALLED = {
  drop_keys: "for services that verify admissions; `request` reaches it",
  events: "`live` polls it where streams do not work",
  follow_drop: "`drops.follow` keeps it open",
  follow_ticket: "the stream of the player has all tickets",
  payment_webhook: "payment providers send it",
  stream: "`live` keeps it open",
};

const read = (path) => JSON.parse(readFileSync(new URL(path, import.meta.url), "utf8"));

export const openapi = read("../../../docs/reference/openapi-gateway.json");

/** The operations of the document: method, path, the names of their parameters, and whether they have a body. */
export const operations = Object.entries(openapi.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, { operationId, parameters = [], requestBody }]) => {
    const named = (place) => parameters.filter((parameter) => parameter.in === place).map(({ name }) => name);
    return { id: operationId, method: method.toUpperCase(), path, params: named("path"), query: named("query"), hasBody: Boolean(requestBody) };
  }),
);

/** Returns the operation that a call sends, or `undefined`. */
export function operationOf(name) {
  const build = reads[name] ?? changes[name];
  const { method, path } = build(...Array.from({ length: build.length }, (_, index) => `argument-${index}`));
  const template = path.split("/").map((part) => part.replace(/^argument-\d+$/, "{}")).join("/");
  return operations.find((operation) => operation.method === method && operation.path.replace(/\{\w+\}/g, "{}") === template);
}

/** The calls by name, each with its operation. Throws if an operation has no call and no reason for that. */
export function calls() {
  const found = [...Object.keys(reads), ...Object.keys(changes)].map((name) => {
    const operation = operationOf(name);
    if (!operation) throw new Error(`\`${name}\` of src/calls.js calls no operation of openapi-gateway.json`);
    return [name, operation];
  });
  const called = new Set([...found.map(([, { id }]) => id), ...Object.keys(NOT_CALLED)]);
  const missing = operations.filter(({ id }) => !called.has(id)).map(({ id }) => id);
  if (missing.length) throw new Error(`${missing} has no call in src/calls.js, and no reason in scripts/operations.mjs`);
  return found;
}
