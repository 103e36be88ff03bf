// The player's inbox.

import { $, element } from "./page.js";

// The most notifications on the page.
const SHOWN = 8;
// Templates whose body is not for people. That of a match is the address of its game server.
const WITHOUT_BODY = new Set(["match-made"]);

export class Inbox {
  #client;
  // By id.
  #notifications = new Map();

  constructor(client) {
    this.#client = client;
    $("read-all").onclick = () => this.#mark("read", { up_to: this.#sorted()[0].position });
  }

  // Shows the part of the home screen. Notifications that arrived since stay.
  show(page) {
    const listed = Number(page.last_event_id);
    const newer = [...this.#notifications.values()].filter((one) => one.position > listed);
    this.#notifications.clear();
    for (const one of [...newer, ...page.notifications]) this.#notifications.set(one.notification_id, one);
    this.#render();
    this.count({ unread: page.unread + newer.filter((one) => !one.read_at).length });
  }

  add(notification) {
    if (this.#notifications.has(notification.notification_id)) return;
    this.#notifications.set(notification.notification_id, notification);
    this.#render();
    this.count({ unread: this.#unread + 1 });
  }

  count({ unread }) {
    this.#unread = unread;
    $("unread").textContent = `${unread} new`;
    $("unread").hidden = $("read-all").hidden = unread === 0;
    document.title = unread ? `(${unread}) Reflex` : "Reflex";
  }

  #unread = 0;

  #sorted() {
    return [...this.#notifications.values()].sort((one, other) => other.position - one.position).slice(0, SHOWN);
  }

  // The queue sends it, now or when the connection is back. A new tab or another device gets the counts by its stream.
  #mark(how, selection) {
    this.#client.queue.add("inbox.mark", [{ mark: how, ...selection }]);
    const now = new Date(this.#client.serverNow()).toISOString();
    for (const one of this.#notifications.values()) {
      const isMeant = selection.ids ? selection.ids.includes(one.notification_id) : one.position <= selection.up_to;
      if (isMeant && !one.read_at) {
        one.read_at = now;
        this.#unread = Math.max(this.#unread - 1, 0);
      }
    }
    this.count({ unread: this.#unread });
    this.#render();
  }

  #render() {
    const shown = this.#sorted();
    $("notifications").replaceChildren(...shown.map((one) => this.#row(one)));
    $("no-notifications").hidden = shown.length > 0;
  }

  #row({ notification_id: id, template, title, body, created_at, read_at }) {
    const time = element("time", { dateTime: created_at, textContent: shortTime(new Date(created_at)) });
    const head = element("div", { className: "row-head" }, element("strong", { textContent: title }), time);
    const row = element("li", { className: read_at ? "row" : "row unread" }, head);
    if (body && !WITHOUT_BODY.has(template)) row.append(element("p", { textContent: localTimes(body) }));
    if (!read_at) {
      const mark = element("button", { className: "link", textContent: "Mark read", ariaLabel: `Mark read: ${title}` });
      mark.onclick = () => this.#mark("read", { ids: [id] });
      row.append(mark);
    }
    return row;
  }
}

// Returns the time of day, with the date if that is not today.
function shortTime(time) {
  const isToday = time.toDateString() === new Date().toDateString();
  return time.toLocaleString([], { dateStyle: isToday ? undefined : "short", timeStyle: "short" });
}

// Converts the UTC times in a text to the local time of the player.
const localTimes = (text) => text.replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, (time) => shortTime(new Date(time)));
