// Sinks: how far each is behind the commits, of the fleet and of one partition.
import {count, counted, duration, h, table} from "./format.js";

const TONES = {failing: "bad", refusing: "bad", paused: "info", "waiting for parents": "info", opening: "info"};
const chip = (state, number = null) => h("span", {class: `chip ${TONES[state] ?? "ok"}`}, number == null ? state : `${state} ${count(number)}`);
const COLUMNS = [["Sink", ""], ["State", ""], ["Commits behind", "number"], ["Rows behind", "number"], ["Oldest", "number"],
  ["Rows per second", "number"]];

const $ = id => document.getElementById(id);

/** The fleet's sinks and their errors; the section is hidden where there is no sink. */
export function draw(sinks, now) {
  $("sinks").hidden = !sinks.length;
  table($("sink-list"), COLUMNS, sinks.map(sink => {
    const states = Object.entries(sink.states);
    return {cells: [sink.name, h("span", {}, states.map(([state, number]) => chip(state, states.length > 1 ? number : null))),
      count(sink.commits), count(sink.rows), duration(sink.seconds), count(Math.round(sink.rate))]};
  }));
  $("sink-errors").replaceChildren(...sinks.filter(sink => sink.error).map(sink => h("li", {}, h("span", {}, sink.name),
    h("span", {class: "text"}, sink.error), h("span", {class: "muted"}, lasts(sink, now)))));
}

/** Facts of one partition: a line for each sink. */
export function facts(sinks, now) {
  return sinks.flatMap(sink => [h("dt", {}, `Sink ${sink.name}`), h("dd", {}, chip(sink.state), " ",
    sink.commits ? `${counted(sink.commits, "commit")} behind, ${counted(sink.rows, "row")}, oldest ${duration(sink.seconds)}` : sink.commits === 0 ? "has everything" : "",
    sink.error ? h("div", {class: "muted"}, sink.error, " ", lasts(sink, now)) : "")]);
}

const lasts = ({error_since: since}, now) => since ? `for ${duration(now - since)}` : "";
