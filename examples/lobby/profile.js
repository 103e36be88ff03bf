// Who the player is, and what they have won.

import { $ } from "./page.js";

const TROPHY = "trophy";

export class Profile {
  // Shows the user. `session` is there in browsers.
  show({ display_name: name, user_id: id, accounts, session }) {
    const shown = name ?? `Player ${id.slice(-4)}`;
    for (const place of document.querySelectorAll(".player-name")) place.textContent = shown;
    for (const place of document.querySelectorAll(".avatar")) place.textContent = shown.charAt(0).toUpperCase();
    const since = accounts[0] && new Date(accounts[0].created_at).toLocaleDateString([], { dateStyle: "long" });
    $("since").textContent = since ? `Playing since ${since}` : "";
    $("player-id").textContent = id;
    if (session) $("logout").href = session.logout_url;
    $("player").hidden = false;
  }

  // Shows what the entitlements say about the player.
  count(owned) {
    const quantity = ({ quantity }) => quantity ?? 1;
    const trophies = owned.filter(({ resource }) => resource === TROPHY);
    $("trophies").textContent = String(trophies.reduce((sum, one) => sum + quantity(one), 0));
    $("item-count").textContent = String(owned.length - trophies.length);
  }
}
