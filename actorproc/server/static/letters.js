// Dead letters: filter, look at one, replay or purge.
import {get, post} from "./api.js";
import {confirm, count, counted, download, h, reveal, table} from "./format.js";

const $ = id => document.getElementById(id);
let state = {processor: null, id: null, query: null, letters: [], chosen: new Set()};

const filter = () => Object.fromEntries([...new FormData($("filter"))].filter(([, value]) => value));

const api = () => `api/processors/${encodeURIComponent(state.processor)}/dead-letters`;

/** The address of this view with its filter and letter, for permalinks. */
const address = (id = state.id) =>
  `#/${encodeURIComponent(state.processor)}/letters${id ? `/${encodeURIComponent(id)}` : ""}?${new URLSearchParams(filter())}`;

export async function show(processor, id, query) {
  const form = $("filter");
  const again = processor === state.processor && query.toString() === state.query;
  Object.assign(state, {processor, id, query: query.toString()});
  if (!again) {
    for (const name of ["partition", "replayed"]) form.elements[name].value = query.get(name) ?? "";
    await load(query.get("kind") ?? "");
  }
  list();
  one();
  if (id) reveal($("letter"));
}

async function load(kind) {
  state.chosen.clear();
  const answer = await get(`${api()}?${new URLSearchParams({...filter(), kind})}`);
  state.letters = answer.letters;
  const kinds = [...new Set([...Object.keys(answer.kinds), ...(kind ? [kind] : [])])].sort();
  $("filter").elements.kind.replaceChildren(
    h("option", {value: ""}, "any"),
    ...kinds.map(name => h("option", {value: name, selected: name === kind}, `${name} (${answer.kinds[name] ?? 0})`)),
  );
  $("letters-note").textContent = !answer.letters.length ? "No dead letter matches."
    : answer.more ? `The first ${count(answer.letters.length)} of ${inAll(answer)}.` : `${inAll(answer)}.`;
}

/** How many letters there are. The server counts for some seconds. */
const inAll = ({total, total_exact: exact}) => `${exact ? "" : "at least "}${counted(total, "dead letter")}`;

function list() {
  const columns = [["Select", ""], ["Letter", ""], ["Time (UTC)", ""], ["Kind", ""], ["Message", "text"], ["Replayed", ""]];
  table($("letter-list"), columns, state.letters.map(letter => ({
    class: letter.id === state.id ? "chosen" : null,
    cells: [
      h("input", {type: "checkbox", "aria-label": `Select ${letter.id}`, checked: state.chosen.has(letter.id),
        onchange: event => choose(letter.id, event.target.checked)}),
      h("a", {href: address(letter.id)}, letter.id),
      letter.time.slice(0, 19).replace("T", " "),
      letter.kind, letter.error.message, letter.replayed ? "yes" : "",
    ],
  })));
  $("letter-list").hidden = !state.letters.length;
  buttons();
}

function choose(id, chosen) {
  state.chosen[chosen ? "add" : "delete"](id);
  buttons();
}

/** The buttons say what they act upon. */
function buttons() {
  const which = state.chosen.size ? counted(state.chosen.size, "letter") : Object.keys(filter()).length ? "all that match" : "all";
  for (const [id, verb] of [["replay", "Replay"], ["purge", "Purge"]]) {
    $(id).textContent = `${verb} ${which}`;
    $(id).disabled = !state.letters.length;
  }
}

function one() {
  const letter = state.letters.find(found => found.id === state.id);
  $("letter").hidden = !letter;
  if (!letter) return;
  const payload = text => { try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text ?? "null"; } };
  const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  $("letter").replaceChildren(
    h("h2", {}, `Letter ${letter.id}`),
    h("p", {}, h("a", {href: `#/${encodeURIComponent(state.processor)}/record/${encodeURIComponent(letter.id)}`}, "What became of its record?")),
    h("dl", {class: "facts"},
      fact("Error", `${letter.kind}: ${letter.error.message}`),
      fact("Failed", `${letter.time.slice(0, 19).replace("T", " ")} UTC on ${letter.host}, epoch ${letter.epoch}, attempts ${letter.attempts}`),
      fact("Record of", letter.timestamp ?? "–"), fact("Key", letter.key ?? "–"),
      letter.headers.map(header => fact(`Header ${header.key}`, header.value ?? "–"))),
    h("h2", {}, `Payload${letter.encoding ? ` (${letter.encoding})` : ""}`), h("pre", {tabindex: 0}, payload(letter.value)),
    letter.encoding || letter.replayed ? "" : h("p", {class: "actions"},
      h("button", {type: "button", onclick: () => correct(letter, payload(letter.value))}, "Correct and replay ...")),
    ...(letter.error.traceback ? [h("h2", {}, "Traceback"), h("pre", {tabindex: 0}, letter.error.traceback)] : []),
  );
}

/** Replay one letter with a payload that the operator has corrected. */
async function correct(letter, text) {
  const edit = h("textarea", {"aria-label": "Corrected payload", rows: 12, spellcheck: "false"});
  edit.value = text;
  const title = `Replay letter ${letter.id} with this payload`;
  if (!await confirm(title, "It is appended to its log, once. The letter itself stays as it is.", "Replay", edit)) return;
  await send("replay", {ids: [letter.id], value: edit.value}, replayed);
}

async function progress(path) {
  const {done, files} = await get(path).catch(() => ({}));
  if (files) $("letters-note").textContent = `Replaying: ${count(done)} of ${counted(files, "file")} of dead letters are done ...`;
}

function replayed(answer) {
  const [refused, ...more] = Object.entries(answer.refused);
  const others = more.length ? ` (and ${counted(more.length, "other letter")})` : "";
  return `${answer.replayed} replayed${answer.before ? `, ${answer.before} were replayed before` : ""}.${
    refused ? ` Not sent: ${refused[0]}: ${refused[1]}${others}.` : ""}`;
}

async function act(action, title, consequence, done) {
  const ids = [...state.chosen];
  const wanted = filter();
  const filtered = Object.keys(wanted).length > 0;
  let which = `The ${counted(ids.length, "selected letter")}`;
  if (!ids.length) {
    const number = await get(`${api()}?${new URLSearchParams({...wanted, limit: 1})}`).then(inAll, error => `An unknown number of letters (${error.message})`);
    which = `${number[0].toUpperCase()}${number.slice(1)}: all that ${filtered ? "match the filter" : "this processor has"}`;
  }
  if (!await confirm(title, `${which}. ${consequence}`, title)) return;
  await send(action, ids.length ? {ids} : filtered ? wanted : {all: true}, done);
}

/** Let the server act, and show what it has done. */
async function send(action, choice, done) {
  const path = `${api()}/${action}`;
  const timer = action === "replay" ? setInterval(() => progress(path), 1000) : 0;
  try {
    const answer = await post(path, choice).finally(() => clearInterval(timer));
    await load(filter().kind ?? "");
    list();
    one();
    $("letters-note").textContent = done(answer);
  } catch (error) {
    $("letters-note").textContent = error.message;
  }
}

$("filter").addEventListener("change", () => { location.hash = address(null); });
$("filter").addEventListener("submit", event => event.preventDefault());
$("replay").addEventListener("click", () => act("replay", "Replay", "They are appended to their log again, each once.", replayed));
$("purge").addEventListener("click", () => act("purge", "Purge", "They are deleted for good. Letters of one commit go together only.",
  answer => `${answer.purged} purged${answer.held ? `; ${answer.held} stay, since they share a commit with letters that are not chosen` : ""}.`));
$("letters-export").addEventListener("click", () => download("dead-letters.json",
  state.letters.filter(letter => !state.chosen.size || state.chosen.has(letter.id))));
