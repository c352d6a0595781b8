// One record: what the source has, the rows that came of it, and its dead letter, side by side.
import {get} from "./api.js";
import {count, counted, h} from "./format.js";

const $ = id => document.getElementById(id);
let asked = 0;

/** Show the record `id` (PARTITION:SEQUENCE) of a processor; without an id only the form. */
export async function show(processor, id) {
  const own = ++asked;
  $("which").elements.id.value = id;
  $("record-note").textContent = id ? "Looking for it ..." : "Name a record by its partition and its sequence.";
  $("record-parts").replaceChildren();
  if (!id) return;
  const found = await get(`api/processors/${encodeURIComponent(processor)}/record?${new URLSearchParams({id})}`).catch(error => error);
  if (own !== asked) return;
  if (found instanceof Error) { $("record-note").textContent = found.message; return; }
  $("record-note").textContent = `Record ${count(found.sequence)} of partition ${found.partition}: ${found.outcome}.`;
  $("record-parts").replaceChildren(input(found), output(found), letter(processor, found));
}

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
const part = (title, ...content) => h("section", {}, h("h2", {}, title), ...content);
const json = text => { try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; } };

function input({record, record_missing: missing}) {
  if (!record) return part("Input record", h("p", {class: "muted"}, missing));
  return part("Input record",
    h("dl", {class: "facts"}, fact("Time", record.timestamp ?? "–"), fact("Key", record.key ?? "–"),
      record.headers.map(header => fact(`Header ${header.key}`, header.value ?? "–"))),
    h("h3", {class: "small"}, `Payload${record.encoding ? ` (${record.encoding})` : ""}`), h("pre", {tabindex: 0}, json(record.value ?? "null")));
}

function output({passes, sinks = []}) {
  if (!passes.length) return part("Output", h("p", {class: "muted"}, "No row."));
  return part("Output", ...passes.flatMap(one => [
    h("dl", {class: "facts"}, fact("Commit", one.first === one.last ? count(one.first) : `one of ${count(one.first)} to ${count(one.last)}, compacted`),
      one.time ? fact("At", `${new Date(one.time * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC on ${one.host}, epoch ${count(one.epoch)}`) : [],
      fact("File", one.file), fact("Rows", one.count > one.rows.length ? `${count(one.count)}, the first ${one.rows.length} of them here` : count(one.count))),
    ...one.rows.length ? [h("pre", {tabindex: 0}, one.rows.map(row => JSON.stringify(row, null, 2)).join("\n"))] : [],
  ]), ...sinks.length ? [h("dl", {class: "facts"}, sinks.map(({sink, state, next}) =>
    fact(`Sink ${sink}`, state === "delivered" || state === "before its start" ? state : `${state}: it gets commit ${count(next)} next`)))] : []);
}

function letter(processor, {letter: found}) {
  if (!found) return part("Dead letter", h("p", {class: "muted"}, "None."));
  const href = `#/${encodeURIComponent(processor)}/letters/${encodeURIComponent(found.id)}`;
  return part("Dead letter",
    h("dl", {class: "facts"}, fact("Error", `${found.kind}: ${found.error.message}`),
      fact("Failed", `${found.time.slice(0, 19).replace("T", " ")} on ${found.host}, epoch ${found.epoch}, after ${counted(found.attempts, "attempt")}`),
      fact("Replayed", found.replayed ? "yes" : "no"), fact("Letter", h("a", {href}, found.id))),
    ...found.error.traceback ? [h("h3", {class: "small"}, "Traceback"), h("pre", {tabindex: 0}, found.error.traceback)] : []);
}
