// The last day: lag, rate and dead letters as lines, with marks for starts of hosts and acts of operators.
import {get} from "./api.js";
import {count, h} from "./format.js";

const SVG = "http://www.w3.org/2000/svg", HEIGHT = 40;
const clock = time => new Date(time * 1000).toISOString().slice(11, 16);

/** What to show of the last day of a processor, or of one of its partitions. */
export async function load(processor, partition = null) {
  const query = partition == null ? "" : `?partition=${encodeURIComponent(partition)}`;
  return get(`api/processors/${encodeURIComponent(processor)}/history${query}`);
}

/** Elements for a series of the server. `all`: of the whole processor, with its marks as a list. */
export function draw(series, all) {
  const {start, interval, lag, records, dead_letters: letters, troubled, owners = [], marks = []} = series;
  if (lag.every(value => value == null) && !records.some(Boolean))
    return [h("p", {class: "muted"}, `Nothing yet. Hosts write their history every ${Math.round(interval / 60)} minutes (history_interval).`)];
  const shown = {start, interval, steps: lag.length, marks, owners};
  return [
    row("Lag, at its highest in each step", lag, shown, count),
    row("Records per second", records.map(value => value / interval), shown, value => count(Math.round(value * 10) / 10)),
    ...letters.some(Boolean) ? [row("Dead letters", letters, shown, count)] : [],
    ...troubled.some(Boolean) ? [row(all ? "Partitions in trouble" : "In trouble", troubled, shown, count)] : [],
    axis(shown),
    ...owners.length ? [h("p", {class: "muted"}, `Owners: ${owners.map(([step, host]) => `${host} from ${clock(start + step * interval)}`).join(", ")} UTC.`)] : [],
    ...all && marks.length ? [list(marks)] : [],
  ];
}

function row(name, values, shown, say) {
  const known = values.filter(value => value != null), most = Math.max(0, ...known), at = values.indexOf(most);
  const latest = values.findLast(value => value != null);
  const text = known.length ? `latest ${say(latest)}, most ${say(most)} at ${clock(shown.start + at * shown.interval)}` : "not known";
  return h("div", {class: "past"}, h("p", {}, h("b", {}, name), " ", h("span", {class: "muted"}, text)), lines(values, most, shown));
}

/** The line of values, with gaps where they are not known, and a vertical line for each mark and new owner. */
function lines(values, most, {start, interval, steps, marks, owners}) {
  const svg = element("svg", {viewBox: `0 0 ${steps} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true"});
  for (const {time, kind} of marks) svg.append(upright((time - start) / interval, `mark ${kind}`));
  for (const [step] of owners.slice(1)) svg.append(upright(step, "mark owner"));
  let path = "", pen = "M";
  values.forEach((value, step) => {
    if (value == null) { pen = "M"; return; }
    const y = (HEIGHT - 1 - value / Math.max(most, 1e-9) * (HEIGHT - 3)).toFixed(1);
    path += pen === "M" ? `M${step} ${y}H${step + 1}` : `L${step} ${y}H${step + 1}`;
    pen = "L";
  });
  svg.append(element("path", {d: path || "M0 0"}));
  return svg;
}

const upright = (x, kind) => element("line", {x1: x.toFixed(2), x2: x.toFixed(2), y1: 0, y2: HEIGHT, class: kind});

function axis({start, interval, steps}) {
  const times = [0, 0.25, 0.5, 0.75, 1].map(share => clock(start + share * steps * interval));
  return h("p", {class: "axis muted", "aria-hidden": "true"}, times.map((time, i) => h("span", {}, i === 4 ? `${time} UTC` : time)));
}

function list(marks) {
  const items = marks.toReversed().map(({time, kind, text}) => h("li", {}, h("i", {class: `tick ${kind}`, "aria-hidden": "true"}), `${clock(time)} ${text}`));
  return h("div", {class: "marks", tabindex: 0, role: "region", "aria-label": "Starts of hosts and acts of operators"}, h("ul", {}, items));
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
