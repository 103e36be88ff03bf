// Everything that concerns the player, as it happens.

import { call, trouble } from "./page.js";

// A browser connects again by itself when a stream breaks off, and says which id it had last. When it is refused, it gives up: then we
// ask again after this time.
const REFUSED = 3000;

// Follows from behind this id. `heard` has a function per kind of event.
export function follow(lastEventId, heard) {
  const stream = new EventSource(`/v1/stream?last_event_id=${encodeURIComponent(lastEventId)}`);
  for (const [kind, tell] of Object.entries(heard)) {
    stream.addEventListener(kind, (event) => {
      lastEventId = event.lastEventId || lastEventId;
      tell(JSON.parse(event.data));
    });
  }
  stream.addEventListener("end", (event) => {
    stream.close();
    trouble(`No more news: ${JSON.parse(event.data).why}. Reload the page to go on.`);
  });
  stream.addEventListener("error", async () => {
    if (stream.readyState !== EventSource.CLOSED) return;
    await new Promise((done) => setTimeout(done, REFUSED));
    // It is not said why. If the session is gone, asking again is of no use.
    const error = await call("GET", "/v1/me").catch((error) => error);
    if (error.status === 401) return trouble("You are signed out. Reload the page to sign in.");
    follow(lastEventId, heard);
  });
}
