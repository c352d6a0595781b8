// Numbers, times and small elements, the same everywhere.

export const VERDICTS = {
  ok: ["", ""], ended: ["", "■"], vanished: ["", "□"], moving: ["info", "→"], paused: ["info", "‖"], opening: ["info", "○"],
  behind: ["warn", "↓"], slow: ["warn", "~"],
  retrying: ["warn", "↻"], starved: ["warn", "…"], failing: ["bad", "×"], stuck: ["bad", "!"], unreadable: ["bad", "?"],
  silent: ["bad", "–"], unowned: ["bad", "∅"],
};

export const tone = verdict => (VERDICTS[verdict] ?? VERDICTS.unreadable)[0];
export const mark = verdict => (VERDICTS[verdict] ?? VERDICTS.unreadable)[1];

export const count = number => number == null ? "–" : Number(number).toLocaleString("en");

export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

export function duration(seconds) {
  if (seconds == null) return "–";
  const units = [["d", 86400], ["h", 3600], ["min", 60]];
  const [unit, size] = units.find(([, size]) => seconds >= 2 * size) ?? ["s", 1];
  return `${Math.max(0, Math.floor(seconds / size))} ${unit}`;
}

/** An element with attributes, listeners (`onclick`) and children. Text is always text, never markup. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value == null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter(child => child != null));
  return element;
}

export const chip = verdict => h("span", {class: `chip ${tone(verdict) || "ok"}`}, verdict);

export function table(element, columns, rows) {
  const cell = (name, [, kind], content) => h(name, {class: kind, scope: name === "th" ? "col" : null}, content ?? "");
  element.replaceChildren(
    h("thead", {}, h("tr", {}, columns.map(column => cell("th", column, column[0])))),
    h("tbody", {}, rows.map(({cells, ...attributes}) =>
      h("tr", attributes, cells.map((content, i) => cell("td", columns[i], content))))),
  );
}

/** Ask before an act, with a table of its effects if there is one. Resolves to whether it was confirmed. */
export function confirm(title, text, action, effects = null) {
  const dialog = document.getElementById("confirm"), detail = document.getElementById("confirm-detail");
  detail.replaceChildren(...effects ? [effects] : []);
  detail.hidden = !effects;
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-text").textContent = text;
  document.getElementById("confirm-ok").textContent = action;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise(resolve => dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok"), {once: true}));
}

for (const button of document.querySelectorAll("dialog .cancel"))  // no submit button: Enter would press the first one
  button.addEventListener("click", () => button.closest("dialog").close("cancel"));

/** Scroll to a section that was chosen, where it is not beside the list. */
export function reveal(section) {
  if (matchMedia("(max-width: 900px)").matches) section.scrollIntoView({block: "start"});
}

/** Let the browser save `content` as a JSON file. */
export function download(name, content) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)], {type: "application/json"}));
  h("a", {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** A line of numbers, scaled to their maximum. Set `values`. */
class LagLine extends HTMLElement {
  set values(values) {
    const known = values.map(value => value ?? 0), top = Math.max(1, ...known), last = Math.max(1, known.length - 1);
    const points = (known.length === 1 ? [known[0], known[0]] : known)
      .map((value, i) => `${(i / last * 100).toFixed(1)} ${(19 - value / top * 18).toFixed(1)}`);
    this.innerHTML = '<svg viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true"><path></path></svg>';
    if (points.length) this.querySelector("path").setAttribute("d", `M${points.join("L")}`);
  }
}
customElements.define("lag-line", LagLine);

export function line(values, wide = false) {
  const element = h("lag-line", {class: wide ? "wide" : null});
  element.values = values;
  return element;
}
