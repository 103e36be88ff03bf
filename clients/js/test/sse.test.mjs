import assert from "node:assert/strict";
import { test } from "node:test";

import { EventParser } from "../src/sse.js";

function parse(bytes, size) {
  const seen = [];
  const parser = new EventParser({
    onEvent: (event) => seen.push(event),
    onComment: () => seen.push("comment"),
    onRetry: (milliseconds) => seen.push(milliseconds),
  });
  for (let at = 0; at < bytes.length; at += size) parser.push(bytes.subarray(at, at + size));
  return seen;
}

test("events are the same however the bytes are split", () => {
  const text =
    "retry: 560\n\n:\n\nid: 7\nevent: notification\ndata: {\"title\":\"ニュース 🎉\"}\n\n" +
    "data: one\r\ndata:two\r\n\r\ndata\r\revent: only a name\n\nid: a\0b\ndata:  x\n\nretry: soon\nunknown: 1\ndata: unfinished\n";
  const expected = [
    560,
    "comment",
    { id: "7", name: "notification", data: "{\"title\":\"ニュース 🎉\"}" },
    { id: undefined, name: "message", data: "one\ntwo" },
    { id: undefined, name: "message", data: "" },
    { id: undefined, name: "message", data: " x" },
  ];
  const bytes = new TextEncoder().encode(text);
  for (let size = 1; size <= bytes.length; size += 1) assert.deepEqual(parse(bytes, size), expected, `chunks of ${size}`);
});

test("a byte order mark is not part of the first field", () => {
  assert.deepEqual(parse(new TextEncoder().encode("\ufeffdata: x\n\n"), 1), [{ id: undefined, name: "message", data: "x" }]);
});
