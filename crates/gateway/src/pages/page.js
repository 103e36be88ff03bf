// Helpers for all scripts of the page.

const CSRF = { "x-playhouse-csrf": "1" };

export const $ = (id) => document.getElementById(id);

export function element(name, attributes, ...children) {
  const created = Object.assign(document.createElement(name), attributes);
  created.append(...children);
  return created;
}

export function showError(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

export async function call(method, path, body, extra) {
  const headers = { ...CSRF, ...(body && { "content-type": "application/json" }), ...extra };
  const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const data = response.status === 204 ? null : await response.json();
  if (!response.ok) throw Object.assign(new Error(data.detail ?? data.title), { status: response.status });
  return data;
}
