// Opens the forms of actions in a dialog. The form itself is sent as it would be without this script.

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

/** Adds a button that copies the text of each code block. */
export function offerCopies(root) {
  if (!navigator.clipboard) return;
  for (const block of root.querySelectorAll(".same pre")) {
    const button = element("button", "button quiet copy", "Copy");
    button.type = "button";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.before(button);
  }
}

async function open(href) {
  const response = await fetch(href, { headers: { accept: "text/html" } });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const action = page.querySelector("[data-action]");
  // A sign-in page or an error: shown as a page.
  if (!action) return location.assign(href);

  const dialog = element("dialog");
  const title = element("h2", "", action.dataset.title);
  title.id = "dialog-title";
  dialog.setAttribute("aria-labelledby", title.id);
  const content = document.adoptNode(action);
  content.classList.remove("card");
  dialog.append(title, content);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-cancel]")) {
      event.preventDefault();
      dialog.close();
    }
  });
  document.body.append(dialog);
  offerCopies(dialog);
  dialog.showModal();
  dialog.querySelector("input:not([type=hidden]), select, textarea")?.focus();
}

/** Makes links to forms of actions open a dialog, unless the operator wants a tab. */
export function openDialogs() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-dialog]");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    open(link.href).catch(() => location.assign(link.href));
  });
  // A second press of the button must not send the form twice.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) return event.preventDefault();
    event.target.dataset.sent = "1";
  });
  // The back button may show the page as it was when the form was sent.
  addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  });
}
