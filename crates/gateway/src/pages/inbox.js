// The inbox: what the player was told, and what they have read of it.

import { $, call, element, trouble } from "./page.js";

const SHOWN = 20;
const TOAST = 6000;
// By id. What came by the stream after the list was made is in it too.
const notifications = new Map();
let unread = 0;
let loading;

// A page of the inbox, as /v1/home and /v1/notifications have it.
export function list(page) {
  const listed = Number(page.last_event_id);
  const newer = [...notifications.values()].filter((one) => one.position > listed);
  notifications.clear();
  for (const one of [...newer, ...page.notifications]) notifications.set(one.notification_id, one);
  unread = page.unread + newer.filter((one) => !one.read_at).length;
  render();
}

// One that has just come.
export function add(notification) {
  if (notifications.has(notification.notification_id)) return;
  notifications.set(notification.notification_id, notification);
  if (!notification.read_at) unread += 1;
  render();
  const toast = element("div", { className: "toast", textContent: notification.title });
  $("toasts").append(toast);
  setTimeout(() => toast.remove(), TOAST);
}

// Something was marked, here or on another device. However often this is asked meanwhile, it is read once more.
export async function reload() {
  if (loading) return (loading.again = true);
  loading = { again: true };
  try {
    while (loading.again) {
      loading.again = false;
      list(await call("GET", `/v1/notifications?limit=${SHOWN}`));
    }
  } catch (error) {
    trouble(error.message);
  } finally {
    loading = undefined;
  }
}

async function mark(how, which) {
  try {
    await call("POST", "/v1/notifications/mark", { mark: how, ...which });
    await reload();
  } catch (error) {
    trouble(error.message);
  }
}

function render() {
  const shown = [...notifications.values()].sort((one, other) => other.position - one.position).slice(0, SHOWN);
  $("notifications").replaceChildren(...shown.map(row));
  $("empty").hidden = shown.length > 0;
  $("unread").textContent = `${unread} unread`;
  $("unread").hidden = $("read-all").hidden = unread === 0;
  document.title = unread ? `(${unread}) Playhouse` : "Playhouse";
  // What came after the newest that is shown was not on the screen, and is not marked.
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

// Texts name times as events do, in UTC. Players read them by their own clock.
const localTimes = (text) => text.replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, (time) => new Date(time).toLocaleString());
