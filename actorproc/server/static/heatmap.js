// <heat-map>: a row for each host, a cell for each partition. Arrow keys move, Enter chooses.
import {count, counted, duration, h, mark, tone} from "./format.js";

const NOBODY = "no host";

class HeatMap extends HTMLElement {
  rows = new Map();
  cells = new Map();

  connectedCallback() {
    this.addEventListener("click", event => this.#choose(event.target.closest(".cell"), event.ctrlKey || event.metaKey || event.shiftKey));
    this.addEventListener("keydown", event => this.#move(event));
  }

  /** Show these hosts, and those of the partitions that have changed. `most`: the largest lag of all. */
  update(hosts, changed, most) {
    const names = [...hosts.map(host => host.host), NOBODY];
    for (const [name, row] of this.rows) if (!names.includes(name)) { row.element.remove(); this.rows.delete(name); }
    names.forEach(name => this.#row(name));
    for (const view of changed) this.#cell(view);
    for (const view of this.#views()) this.#shade(view, most);
    for (const host of hosts) this.#describe(host);
    this.rows.get(NOBODY).element.hidden = !this.rows.get(NOBODY).list.children.length;
  }

  mark(partition) {
    for (const [name, {button}] of this.cells) button.setAttribute("aria-pressed", name === partition);
  }

  clear() {
    this.rows.clear();
    this.cells.clear();
    this.replaceChildren();
  }

  *#views() { for (const {view} of this.cells.values()) yield view; }

  #row(name) {
    if (this.rows.has(name)) return this.rows.get(name);
    const list = h("div", {class: "cells", role: "group", "aria-label": `Partitions of ${name}`});
    const note = h("p", {});
    const row = {list, note, element: h("div", {class: "host"}, h("div", {}, h("h3", {}, name), note), list)};
    this.rows.set(name, row);
    const before = name === NOBODY ? null : this.rows.get(NOBODY)?.element;
    this.insertBefore(row.element, before ?? null);
    return row;
  }

  #cell(view) {
    const cell = this.cells.get(view.partition) ?? {button: h("button", {type: "button", class: "cell", tabindex: -1})};
    cell.view = view;
    const {button} = cell, list = this.#row(view.owner ?? NOBODY).list;
    this.cells.set(view.partition, cell);
    button.dataset.partition = view.partition;
    button.className = `cell ${tone(view.verdict)}`;
    button.textContent = mark(view.verdict);
    const lag = view.lag == null ? "lag not known" : `lag ${count(view.lag)}`;
    button.title = `${view.partition}: ${view.verdict}, ${lag}`;
    button.setAttribute("aria-label", `Partition ${view.partition}, ${view.verdict}, ${lag}`);
    if (button.parentElement !== list) list.append(button);
    if (!this.querySelector('[tabindex="0"]')) button.tabIndex = 0;
  }

  #shade(view, most) {
    const share = view.lag ? 30 + 65 * Math.log1p(view.lag) / Math.log1p(Math.max(most, 1000)) : 20;
    this.cells.get(view.partition).button.style.setProperty("--lag", `${Math.round(share / 5) * 5}%`);
  }

  #describe(host) {
    const {note} = this.rows.get(host.host);
    const state = !host.alive ? "silent" : host.leaving ? "leaving" : host.in_group ? "" : "joining";
    note.textContent = [counted(host.leases ?? 0, "partition"), state, `heard ${duration(host.age)} ago`, host.error]
      .filter(Boolean).join(", ");
    note.className = host.alive && !host.error ? "" : "bad";
  }

  /** Show a partition, or pick it for an act. Enter is a click, too, with the keys that are held. */
  #choose(button, isPick) {
    if (!button) return;
    this.#focus(button);
    this.dispatchEvent(new CustomEvent(isPick ? "pick" : "choose", {detail: button.dataset.partition}));
  }

  #focus(button) {
    this.querySelector('[tabindex="0"]')?.setAttribute("tabindex", -1);
    button.tabIndex = 0;
    button.focus();
  }

  #move(event) {
    const all = [...this.querySelectorAll(".cell")], at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const list = all[at].parentElement, rows = [...this.querySelectorAll(".cells")].filter(row => row.children.length);
    const column = [...list.children].indexOf(all[at]), row = rows.indexOf(list);
    const below = step => { const other = rows[row + step]; return other?.children[Math.min(column, other.children.length - 1)]; };
    const target = {
      ArrowRight: () => all[at + 1], ArrowLeft: () => all[at - 1], ArrowDown: () => below(1), ArrowUp: () => below(-1),
      Home: () => list.firstElementChild, End: () => list.lastElementChild,
    }[event.key]?.();
    if (!target) return;
    event.preventDefault();
    this.#focus(target);
  }
}
customElements.define("heat-map", HeatMap);
