// Shows times relative to now: "12 s ago". The absolute time stays in the title.

const STEPS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [30 * 86400, 86400, "d"]];

function relative(seconds) {
  const size = Math.abs(seconds);
  if (size < 1) return "now";
  const step = STEPS.find(([below]) => size < below);
  if (!step) return null;
  const text = `${Math.floor(size / step[1])} ${step[2]}`;
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}

/** Updates the times inside an element. */
export function showTimes(root = document) {
  for (const time of root.querySelectorAll("time[data-relative]")) {
    const text = relative((Date.now() - Date.parse(time.dateTime)) / 1000) ?? time.title;
    if (time.textContent !== text) time.textContent = text;
  }
}

/** Keeps all times of the page up to date while it is visible. */
export function keepTimes() {
  showTimes();
  setInterval(() => document.hidden || showTimes(), 1000);
}
