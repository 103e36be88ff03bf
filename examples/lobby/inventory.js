// What the player owns.

import { $, element, icon, iconOf, nameOf } from "./page.js";

export class Inventory {
  #client;
  #onShown;
  #loading;
  // Names of resources that were on the page, to point out new ones.
  #known;

  // `onShown` gets what the player owns, whenever that is shown.
  constructor(client, onShown) {
    this.#client = client;
    this.#onShown = onShown;
  }

  show(entitlements) {
    const owned = entitlements.filter((one) => one.in_force && one.quantity !== 0);
    const counted = new Map(owned.map((one) => [one.resource, one.quantity ?? 1]));
    $("items").replaceChildren(...owned.map((one) => this.#tile(one)));
    $("no-items").hidden = owned.length > 0;
    this.#known = counted;
    this.#onShown(owned);
  }

  #tile({ resource, quantity }) {
    const isNew = this.#known && this.#known.get(resource) !== (quantity ?? 1);
    const count = quantity > 1 ? element("span", { className: "count", textContent: `× ${quantity}` }) : "";
    const tile = element("li", { className: isNew ? "tile new" : "tile" }, icon(iconOf(resource), "icon big"));
    tile.append(element("span", { className: "tile-name" }, nameOf(resource)), count);
    tile.dataset.resource = resource;
    return tile;
  }

  // Loads the list again. Calls during a load cause one more.
  async refresh() {
    if (this.#loading) return void (this.#loading.again = true);
    const loading = (this.#loading = { again: true });
    try {
      while (loading.again) {
        loading.again = false;
        this.show((await this.#client.entitlements()).entitlements);
      }
    } catch {
      // The next notification or reconnect repairs it.
    } finally {
      this.#loading = undefined;
    }
  }
}
