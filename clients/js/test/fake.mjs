// A gateway in memory, for tests of the client alone.

import { Playhouse, bearer, memoryStorage } from "../src/index.js";

export const USER = "11111111-1111-7111-8111-111111111111";

// Returns a client whose requests `answer` answers. `answer` gets the request and may return a Response, a body, or throw.
// `requests` has all requests so far. Waits are as short as the jitter allows.
export function fakeClient(answer, options = {}) {
  const requests = [];
  const fetch = async (url, init) => {
    const { pathname, searchParams } = new URL(url);
    const request = { method: init.method, path: pathname, query: Object.fromEntries(searchParams), headers: init.headers, body: init.body, signal: init.signal };
    requests.push(request);
    init.signal?.throwIfAborted();
    const found = await answer(request, requests.length);
    return found instanceof Response ? found : json(found ?? {});
  };
  const client = new Playhouse({
    baseUrl: "http://gateway.test",
    auth: bearer({ accessToken: "token" }),
    random: () => 0,
    storage: memoryStorage(),
    fetch,
    ...options,
  });
  return { client, requests };
}

export function json(body, status = 200, headers = {}) {
  return new Response(JSON.stringify(body), { status, headers: { "content-type": "application/json", ...headers } });
}

export function problem(status, code, headers = {}, more = {}) {
  const body = { type: `urn:playhouse:problem:${code}`, title: "Title", status, detail: "Detail.", request_id: "r1", ...more };
  return new Response(JSON.stringify(body), { status, headers: { "content-type": "application/problem+json", ...headers } });
}

export function home({ position = 0, tickets = [], notifications = [], user = USER, inbox = true, party = { party: null, invitations: [] } } = {}) {
  const page = { notifications, unread: 0, unseen: 0, last_event_id: String(position) };
  return {
    account: { status: "ok", data: { user_id: user, roles: ["player"], accounts: [] } },
    entitlements: { status: "ok", data: { account_id: user, entitlements: [] } },
    matchmaking: { status: "ok", data: { tickets } },
    party: { status: "ok", data: party },
    notifications: inbox ? { status: "ok", data: page } : { status: "unavailable" },
    drops: { status: "ok", data: { places: [], reservations: [] } },
  };
}

// A response that streams events. `send` takes an event's name, data and id; `raw` any text; `close` and `fail` end it.
export function eventStream({ heartbeat = 15000, signal } = {}) {
  let controller;
  const body = new ReadableStream({ start: (created) => (controller = created) });
  const encoder = new TextEncoder();
  const raw = (text) => controller.enqueue(encoder.encode(text));
  signal?.addEventListener("abort", () => {
    try {
      controller.error(signal.reason);
    } catch {
      // It has ended.
    }
  });
  raw("retry: 5\n\n");
  return {
    response: new Response(body, {
      headers: { "content-type": "text/event-stream", "x-playhouse-heartbeat": String(heartbeat) },
    }),
    raw,
    send: (name, data, id) => raw(`${id === undefined ? "" : `id: ${id}\n`}event: ${name}\ndata: ${JSON.stringify(data)}\n\n`),
    close: () => controller.close(),
    fail: () => controller.error(new TypeError("terminated")),
  };
}

// Records the events of a live stream as [name, detail].
export function record(target, names) {
  const seen = [];
  for (const name of names) target.on(name, (detail) => seen.push([name, detail]));
  return seen;
}

// Waits until `check` returns something.
export async function eventually(check, milliseconds = 5000) {
  for (const end = Date.now() + milliseconds; ; ) {
    const found = await check();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not in time: ${check}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

// Returns the active timers of this process.
export function timers() {
  return process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
}
