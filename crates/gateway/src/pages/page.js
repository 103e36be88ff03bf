// What all parts of the page use.

const CSRF = { "x-playhouse-csrf": "1" };

export const $ = (id) => document.getElementById(id);

export function element(name, attributes, ...children) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...children);
  return made;
}

export function trouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
}

export async function call(method, path, body, extra) {
  const headers = { ...CSRF, ...(body && { "content-type": "application/json" }), ...extra };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const data = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw Object.assign(new Error(data.detail ?? data.title), { status: answer.status });
  return data;
}
