// Acts of operators upon the fleet: pause, resume, move, drain, release, reset, each with a reason. And what they asked for.
import {get, post} from "./api.js";
import {counted, h, table} from "./format.js";
import * as resets from "./resets.js";

const $ = id => document.getElementById(id);
const form = () => $("act").elements;
const NEEDS = {pause: "partitions", resume: "partitions", move: "both", "release-partition": "partitions", drain: "host", "release-host": "host",
  reset: "partitions", undo: "partitions"};
let processor = null;

/** The partitions in the form; none: all. */
const named = () => form().partitions.value.split(",").map(name => name.trim()).filter(Boolean);

/** Put partitions into the form. `more`: beside those that are there; one that is there is taken out. */
export function choose(names, more = false) {
  const before = more ? named() : [], left = before.filter(name => !names.includes(name));
  form().partitions.value = [...left, ...names.filter(name => !before.includes(name))].join(", ");
  $("act-note").textContent = `${counted(named().length, "partition")} chosen.`;
}

export function update(name, hosts, wishes) {
  processor = name;
  const select = form().host, chosen = select.value, names = hosts.map(host => host.host);
  if (names.join() !== [...select.options].map(option => option.value).join())
    select.replaceChildren(...names.map(host => h("option", {value: host, selected: host === chosen}, host)));
  $("asked").replaceChildren(...asked(wishes).map(text => h("li", {}, text)));
}

function asked({paused, paused_partitions = [], drained = [], placed = {}, reasons = {}}) {
  const because = act => reasons[act] ? ` (${reasons[act]})` : "";
  const listed = (act, names) => names.map(name => name + because(`${act} ${name}`)).join(", ");
  const said = paused ? [`All partitions are paused${because("pause")}.`] : [];
  if (paused_partitions.length && !paused) said.push(`Paused: ${listed("pause", paused_partitions)}.`);
  if (drained.length) said.push(`Drained: ${listed("drain", drained)}.`);
  for (const [partition, host] of Object.entries(placed))
    said.push(`Partition ${partition} is placed on ${host}${because(`move ${partition}`)}.`);
  return said;
}

/** The requests of the form: [path, body, what]. Throws what is missing. */
function requests() {
  const act = form().act.value, host = form().host.value, names = named();
  if (NEEDS[act] !== "partitions" && !host) throw new Error("There is no host.");
  if ((act === "move" || act === "release-partition") && !names.length) throw new Error("Name the partitions.");
  const all = names.length ? {partitions: names} : {all: true}, which = names.length ? `partitions ${names.join(", ")}` : "all partitions";
  switch (act) {
    case "pause": case "resume": return [[act, all, `${act} ${which}`]];
    case "drain": return [["drain", {host}, `drain ${host}`]];
    case "release-host": return [["release", {host}, `release ${host}`]];
    case "move": return names.map(partition => ["move", {partition, host}, `move ${partition} to ${host}`]);
    default: return names.map(partition => ["release", {partition}, `release ${partition}`]);
  }
}

async function carryOut(confirm) {
  const reason = form().reason.value.trim(), note = $("act-note"), act = form().act.value;
  try {
    if (act === "reset" || act === "undo") {
      const to = act === "reset" ? form().to.value.trim() : null;
      note.textContent = await resets.carryOut(processor, to, named(), reason, confirm, text => { note.textContent = text; });
      return;
    }
    const wanted = requests(), what = wanted.map(([, , text]) => text).join("; ");
    if (!await confirm("Confirm", `${what[0].toUpperCase()}${what.slice(1)}${reason ? `, because: ${reason}` : ""}. It is recorded in the audit.`, "Do it")) return;
    let now = "";
    for (const [i, [act, body, text]] of wanted.entries()) {
      note.textContent = `${i + 1} of ${wanted.length}: ${text} ...`;
      now = (await post(`api/processors/${encodeURIComponent(processor)}/${act}`, reason ? {...body, reason} : body)).now;
    }
    note.textContent = `Done. Now: ${now}.`;
    form().reason.value = "";
  } catch (error) {
    note.textContent = error.message;
  }
}

/** Show only the fields that the act needs. */
function shape() {
  const act = form().act.value, need = NEEDS[act];
  form().to.closest("label").hidden = act !== "reset";
  form().partitions.closest("label").hidden = need === "host";
  form().host.closest("label").hidden = need === "partitions";
}

export function start(confirm) {
  $("act").addEventListener("submit", event => { event.preventDefault(); carryOut(confirm); });
  form().act.addEventListener("change", shape);
  shape();
}

/** The audit: who did what, when and why. */
export async function audit(name) {
  const {acts} = await get(`api/processors/${encodeURIComponent(name)}/audit`);
  const columns = [["Time (UTC)", ""], ["Who", ""], ["Act", ""], ["Reason", ""], ["Afterwards", ""]];
  table($("audit-list"), columns, acts.map(act => ({cells: [
    new Date(act.time * 1000).toISOString().slice(0, 19).replace("T", " "), act.who,
    [act.what, ...Object.entries(act.to ?? {}).map(([key, value]) => `${key} ${value}`)].join(" "), act.reason ?? "", act.effect ?? "",
  ]})));
  $("audit-note").textContent = acts.length ? `${counted(acts.length, "act")}, the latest first.` : "No operator has done anything yet.";
  return acts;
}
