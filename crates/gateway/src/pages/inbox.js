// The player's inbox.

import { $, call, element, showError } from "./page.js";

// The most notifications on the page.
const SHOWN = 20;
// How long a toast is visible, in milliseconds.
const TOAST = 6000;
// By id. Includes notifications that the stream delivered after the list was loaded.
const notifications = new Map();
let unread = 0;
let loading;

// Shows a page of the inbox, as returned by /v1/home and /v1/notifications.
export function list(page) {
  const listed = Number(page.last_event_id);
  const newer = [...notifications.values()].filter((one) => one.position > listed);
  notifications.clear();
  for (const one of [...newer, ...page.notifications]) notifications.set(one.notification_id, one);
  unread = page.unread + newer.filter((one) => !one.read_at).length;
  render();
}

// Adds a new notification.
export function add(notification) {
  if (notifications.has(notification.notification_id)) return;
  notifications.set(notification.notification_id, notification);
  if (!notification.read_at) unread += 1;
  render();
  const toast = element("div", { className: "toast", textContent: notification.title });
  $("toasts").append(toast);
  setTimeout(() => toast.remove(), TOAST);
}

// Reloads the inbox after a mark, on this or another device. Calls during a reload cause one more reload.
export async function reload() {
  if (loading) return (loading.again = true);
  loading = { again: true };
  try {
    while (loading.again) {
      loading.again = false;
      list(await call("GET", `/v1/notifications?limit=${SHOWN}`));
    }
  } catch (error) {
    showError(error.message);
  } finally {
    loading = undefined;
  }
}

async function mark(how, selection) {
  try {
    await call("POST", "/v1/notifications/mark", { mark: how, ...selection });
    await reload();
  } catch (error) {
    showError(error.message);
  }
}

function render() {
  const shown = [...notifications.values()].sort((one, other) => other.position - one.position).slice(0, SHOWN);
  $("notifications").replaceChildren(...shown.map(row));
  $("empty").hidden = shown.length > 0;
  $("unread").textContent = `${unread} unread`;
  $("unread").hidden = $("read-all").hidden = unread === 0;
  document.title = unread ? `(${unread}) Playhouse` : "Playhouse";
  // Later notifications are not on the screen yet, so they are not marked.
  $("read-all").onclick = () => mark("read", { up_to: shown[0].position });
}

function row({ notification_id: id, title, body, created_at, read_at }) {
  const button = (text, how) =>
    element("button", { className: "link", textContent: text, ariaLabel: `${text}: ${title}`, onclick: () => mark(how, { ids: [id] }) });
  const time = element("time", { className: "small", dateTime: created_at, textContent: new Date(created_at).toLocaleString() });
  const li = element("li", { className: read_at ? "" : "unread" }, element("strong", { textContent: title }), " ", time);
  if (body) li.append(element("p", { textContent: localTimes(body) }));
  const buttons = [read_at ? button("Mark unread", "unread") : button("Mark read", "read"), " ", button("Archive", "archived")];
  li.append(element("div", {}, ...buttons));
  return li;
}

// Converts the UTC times in a text to the local time of the player.
const localTimes = (text) => text.replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, (time) => new Date(time).toLocaleString());
