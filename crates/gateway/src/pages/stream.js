// The player's stream of events.

import { call, showError } from "./page.js";

// A browser reconnects by itself when a stream breaks, and sends the last id. If the request is refused, it gives up: then we open
// a new stream after this many milliseconds.
const RETRY = 3000;

// Opens a stream after the event `lastEventId`. `handlers` has a function for each kind of event.
export function openStream(lastEventId, handlers) {
  const stream = new EventSource(`/v1/stream?last_event_id=${encodeURIComponent(lastEventId)}`);
  for (const [kind, handle] of Object.entries(handlers)) {
    stream.addEventListener(kind, (event) => {
      lastEventId = event.lastEventId || lastEventId;
      handle(JSON.parse(event.data));
    });
  }
  stream.addEventListener("end", (event) => {
    stream.close();
    showError(`Updates have stopped: ${JSON.parse(event.data).why}. Reload the page to continue.`);
  });
  stream.addEventListener("error", async () => {
    if (stream.readyState !== EventSource.CLOSED) return;
    await new Promise((done) => setTimeout(done, RETRY));
    // The browser does not report the cause. Without a session, a new stream would be refused too.
    const error = await call("GET", "/v1/me").catch((error) => error);
    if (error.status === 401) return showError("You are signed out. Reload the page to sign in.");
    openStream(lastEventId, handlers);
  });
}
