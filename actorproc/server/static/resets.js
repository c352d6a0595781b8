// Resets of partitions: the server says what one would do, and does it once that was confirmed.
import {post} from "./api.js";
import {count, h, table} from "./format.js";

let cutShort = null;  // {wanted, id} of a reset that may have been carried out in part

/**
 * Show the effect of a reset, ask, and carry it out. Resolves to what to say. Throws with the server's message.
 * `to`: null undoes the latest reset. `names`: the partitions; none: all. `say` shows what is going on.
 */
export async function carryOut(processor, to, names, reason, confirm, say) {
  const undo = to === null;
  if (to === "") throw new Error("To where? earliest, latest, a time, the number of the next record, or -N to go back N records.");
  const path = `api/processors/${encodeURIComponent(processor)}/${undo ? "undo" : "reset"}`;
  const wanted = {...undo ? {} : {to}, ...names.length ? {partitions: names} : {all: true}};
  say("Looking at what it would do ...");
  const plan = await post(path, wanted);
  if (plan.partitions.every(found => found.refusal)) return `Nothing to do. ${refusals(plan.partitions)}`;
  if (!await confirm(undo ? "Undo the latest reset" : `Reset to ${to}`, warning(plan, reason), "Do it", effects(plan.partitions)))
    return "Nothing was changed.";
  say(`It ${plan.effect} ...`);
  const id = cutShort?.wanted === path + JSON.stringify(wanted) ? cutShort.id : newId();
  cutShort = {wanted: path + JSON.stringify(wanted), id};  // the same again leaves alone what is done already
  const done = await post(path, {...wanted, reason, id, yes: true});
  cutShort = null;
  return `Done: ${done.effect}. ${refusals(done.partitions)}`;
}

function warning({effect, partitions}, reason) {
  const repeats = partitions.some(found => !found.refusal && found.repeats !== 0) ? " Rows of repeated records will be in the output twice." : "";
  const clears = partitions.some(found => found.clears_state) ? " Keyed state is cleared, which cannot be undone." : "";
  return `It ${effect}.${repeats}${clears}${reason ? ` Reason: ${reason}.` : ""} It is recorded in the audit.`;
}

function effects(partitions) {
  const element = h("table", {}), place = sequence => sequence < 0 ? "–" : count(sequence);
  const known = number => number == null ? "unknown" : count(number);
  const columns = [["Partition", ""], ["Processed up to", "number"], ["Will be", "number"], ["Repeats", "number"], ["Skips", "number"]];
  table(element, columns, partitions.filter(found => !found.refusal).map(found => ({
    cells: [found.partition, place(found.from), place(found.to), known(found.repeats), known(found.skips)]})));
  return h("div", {}, element, h("p", {class: "muted"}, refusals(partitions)));
}

/** Why partitions are not reset, each reason once. */
function refusals(partitions) {
  const why = new Map();
  for (const {partition, refusal} of partitions) if (refusal) why.set(refusal, [...why.get(refusal) ?? [], partition]);
  return [...why].map(([refusal, names]) => `Not ${names.join(", ")}: ${refusal}.`).join(" ");
}

const newId = () => [...crypto.getRandomValues(new Uint8Array(8))].map(byte => byte.toString(16).padStart(2, "0")).join("");
