// The page: which processor and view, the live stream, and the fleet.
import {events, get} from "./api.js";
import {chip, confirm, count, counted, download, duration, h, line, mark, reveal, table, tone, VERDICTS} from "./format.js";
import "./heatmap.js";
import * as hands from "./hands.js";
import * as history from "./history.js";
import * as letters from "./letters.js";
import * as outlook from "./outlook.js";
import * as record from "./record.js";
import * as sinks from "./sinks.js";

const $ = id => document.getElementById(id);
const PAGES = ["fleet", "letters", "record", "audit"];
const SAMPLES = 90;
const SLOWLY = 60_000;  // milliseconds between two looks at the last day and the outlook
const fleet = {views: new Map(), hosts: [], errors: [], sinks: [], lags: [], chained: false, time: 0, heard: 0, history: new Map(), day: null};
let processors = [], shown = {}, stream = null, loaded = 0, audit = [];

/** The processor, view, partition or letter, and filter that the address names. */
function route() {
  const [path, query = ""] = location.hash.slice(2).split("?");
  const [processor, view, ...rest] = path.split("/").map(decodeURIComponent);
  return {processor: processor || processors[0], view: view || "fleet", id: rest.join("/"), query: new URLSearchParams(query)};
}

const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
const now = () => fleet.time + (performance.now() - fleet.heard) / 1000;

async function start() {
  try {
    const answer = await get("api/processors");
    processors = [...new Set([answer.own, ...answer.processors].filter(Boolean))];
  } catch (error) {
    return problem(error.message);
  }
  $("processor").replaceChildren(...processors.map(name => h("option", {value: name}, name)));
  $("processor").addEventListener("change", event => { location.hash = link(event.target.value); });
  $("map").addEventListener("choose", event => { location.hash = link(shown.processor, "partition", event.detail); });
  $("map").addEventListener("pick", event => hands.choose([event.detail], true));
  $("legend").addEventListener("click", event => pickAll(event.target.closest("button")));
  $("audit-export").addEventListener("click", () => download("audit.json", audit));
  $("which").addEventListener("submit", event => {
    event.preventDefault();
    location.hash = link(shown.processor, "record", event.target.elements.id.value.trim());
  });
  hands.start(confirm);
  addEventListener("hashchange", navigate);
  setInterval(tick, 1000);
  setInterval(slowly, SLOWLY);
  navigate();
}

function navigate() {
  const next = route(), before = shown.processor;
  if (!next.processor) return problem("No processor has run in this container yet.");
  shown = next;
  $("processor").value = next.processor;
  $("to-fleet").href = link(next.processor);
  for (const name of PAGES.slice(1)) $(`to-${name}`).href = link(next.processor, name);
  const page = PAGES.includes(next.view) ? next.view : "fleet";
  for (const name of PAGES) {
    $(name).hidden = name !== page;
    name === page ? $(`to-${name}`).setAttribute("aria-current", "page") : $(`to-${name}`).removeAttribute("aria-current");
  }
  document.title = `${next.processor} · actorproc`;
  const failed = error => problem(error.message);
  if (page === "letters") letters.show(next.processor, next.id, next.query).catch(failed);
  if (page === "record") record.show(next.processor, next.id);
  if (page === "audit") hands.audit(next.processor).then(acts => { audit = acts; }, failed);
  if (before !== next.processor) { follow(next.processor); slowly(); }
  else if (page === "fleet") partition();
  if (next.view === "partition") reveal($("detail"));
}

/** Follow the live stream of a processor, and begin again when it ends. */
async function follow(processor) {
  stream?.abort();
  const {signal} = stream = new AbortController();
  Object.assign(fleet, {views: new Map(), history: new Map(), day: null});
  $("map").clear();
  while (!signal.aborted) {
    try {
      const path = `api/processors/${encodeURIComponent(processor)}`, first = await get(path);
      if (signal.aborted) return;
      receive(first);
      for await (const {name, content} of events(`${path}/events?since=${first.version}`, signal)) {
        if (signal.aborted) return;
        if (name === "problem") throw new Error(content);
        receive(content);
      }
    } catch (error) {
      if (!signal.aborted) problem(error.message);
    }
    await new Promise(resolve => setTimeout(resolve, 2000));
  }
}

function receive(view) {
  problem(view.problem);
  Object.assign(fleet, {hosts: view.hosts, errors: view.errors, sinks: view.sinks, lags: view.lags, wishes: view.wishes, chained: view.is_chained, time: view.time, heard: performance.now()});
  const changed = view.partitions.map(found => ({verdict: "ok", ...found}));  // defaults are left out
  for (const found of changed) {
    fleet.views.set(found.partition, found);
    const past = fleet.history.get(found.partition) ?? [];
    past.push(found.lag ?? 0);
    fleet.history.set(found.partition, past.slice(-SAMPLES));
  }
  draw(changed);
}

function problem(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text ?? "";
}

function draw(changed) {
  const views = [...fleet.views.values()], most = Math.max(0, ...views.map(view => view.lag ?? 0));
  const kinds = {};
  for (const view of views) kinds[view.verdict] = (kinds[view.verdict] ?? 0) + 1;
  const bad = views.filter(view => tone(view.verdict) === "bad").length;
  const odd = views.filter(view => tone(view.verdict) === "warn").length;
  const open = views.length - (kinds.ended ?? 0) - (kinds.vanished ?? 0), paused = kinds.paused ?? 0, are = number => number === 1 ? "is" : "are";
  $("headline").textContent = bad ? `${counted(bad, "partition")} of ${count(open)} ${are(bad)} not progressing`
    : paused ? `${counted(paused, "partition")} of ${count(open)} ${are(paused)} paused`
    : odd ? `All partitions run, ${count(odd)} with trouble` : `All ${counted(open, "partition")} run`;
  summary(views);
  legend(kinds);
  $("map").update(fleet.hosts, changed, most);
  $("map").mark(shown.view === "partition" ? shown.id : null);
  hands.update(shown.processor, fleet.hosts, fleet.wishes);
  errors();
  sinks.draw(fleet.sinks, now());
  behind(views);
  if (!$("partition").dataset.of || changed.some(view => view.partition === shown.id)) partition();
  tick();
}

/** The verdicts with their counts. Buttons stay, so that they keep the focus. */
function legend(kinds) {
  const box = $("legend"), present = Object.keys(VERDICTS).filter(kind => kinds[kind]);
  const buttons = present.map(kind => box.querySelector(`[data-kind="${kind}"]`) ?? h("button", {type: "button", class: "pick", "data-kind": kind,
    title: `Choose all that are ${kind}`}, h("i", {class: `swatch ${tone(kind)}`, "aria-hidden": "true"}, mark(kind)), h("span", {})));
  present.forEach((kind, i) => { buttons[i].lastChild.textContent = `${kind} ${count(kinds[kind])}`; });
  if ([...box.querySelectorAll("button")].map(button => button.dataset.kind).join() !== present.join())
    box.replaceChildren(...buttons, h("span", {}, "stronger colour: more lag"));
}

/** Choose all partitions of a verdict in the legend for an act. */
function pickAll(button) {
  if (button) hands.choose([...fleet.views.values()].filter(view => view.verdict === button.dataset.kind).map(view => view.partition));
}

/** The last day of the processor, and its outlook. Both look at longer times than the stream. */
async function slowly() {
  const {processor} = shown;
  if (!processor || document.hidden) return;
  const show = async (box, drawn) => {
    const elements = await drawn.catch(error => [h("p", {class: "muted"}, error.message)]);
    const open = box.querySelector("details")?.open;
    if (processor === shown.processor) box.replaceChildren(...elements);
    if (open) box.querySelector("details")?.setAttribute("open", "");
  };
  await show($("day"), history.load(processor).then(series => {
    if (processor === shown.processor) fleet.day = series;
    errors();
    return history.draw(series, true);
  }));
  await show($("outlook"), outlook.load(processor));
}

function summary(views) {
  const sum = of => views.reduce((total, view) => total + (of(view) ?? 0), 0), all = key => sum(view => view.counts?.[key]);
  const alive = fleet.hosts.filter(host => host.alive).length;
  const known = views.filter(view => view.lag != null).length;
  const oldest = Math.max(0, ...views.map(view => view.lag_seconds ?? 0));
  const fact = (name, ...value) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value));
  $("summary").replaceChildren(
    fact("Hosts", `${alive} of ${fleet.hosts.length} alive`),
    fact("Lag", `${known < views.length ? "at least " : ""}${count(sum(view => view.lag))} `, line(fleet.lags)),
    fact("Oldest record", duration(oldest)),
    ...fleet.chained ? [fact("End to end", endToEnd(views))] : [],
    fact("In all", `${counted(all("records"), "record")}, ${counted(all("rows"), "row")}, `,
      h("a", {href: link(shown.processor, "letters")}, counted(all("dead_letters"), "dead letter"))),
  );
}

/** Of a chain of processors: the greatest lag since the first source. */
function endToEnd(views) {
  const known = views.filter(view => view.lag_seconds_end_to_end != null).map(view => view.lag_seconds_end_to_end);
  return known.length ? duration(Math.max(...known)) : "–";
}

function errors() {
  const where = names => names.slice(0, 12).flatMap((name, i) =>
    [i ? ", " : "", h("a", {href: link(shown.processor, "partition", name)}, name)]);
  $("errors").replaceChildren(...fleet.errors.slice(0, 20).map(({reason, verdict, since, partitions}) => h("li", {},
    h("span", {}, chip(verdict)), h("span", {class: "text"}, reason),
    h("span", {class: "muted"}, since ? `for ${duration(now() - since)}` : ""),
    h("span", {class: "where"}, `${counted(partitions.length, "partition")}: `, ...where(partitions),
      partitions.length > 12 ? " and more" : ""), trend(partitions))));
  if (!fleet.errors.length) $("errors").append(h("li", {class: "none"}, fleet.sinks.some(sink => sink.error) ? "Nothing with partitions; sinks: see below." : "Nothing."));
}

/** How many of these partitions were in trouble, step by step of the last day. */
function trend(partitions) {
  const {lag = [], trouble = {}} = fleet.day ?? {}, values = lag.map(() => 0);
  for (const name of partitions) for (const step of trouble[name] ?? []) values[step] += 1;
  const steps = values.filter(Boolean).length;
  return steps ? h("span", {class: "where", title: "Partitions of this line that were in trouble, over the last day"},
    `in the last day: ${duration(steps * fleet.day.interval)}, at most ${counted(Math.max(...values), "partition")} at a time `, line(values)) : "";
}

function behind(views) {
  const worst = views.filter(view => view.lag).sort((a, b) => b.lag - a.lag).slice(0, 12);
  const columns = [["Partition", ""], ["Host", ""], ["Lag", "number"], ["Oldest", "number"], ["Trend", ""], ["Time goes to", ""], ["Verdict", ""]];
  table($("behind"), columns, worst.map(view => ({cells: [
    h("a", {href: link(shown.processor, "partition", view.partition)}, view.partition), view.owner ?? "nobody",
    count(view.lag), duration(view.lag_seconds), line(fleet.history.get(view.partition) ?? []), mostly(view), chip(view.verdict),
  ]})));
  if (!worst.length) $("behind").replaceChildren(h("tbody", {}, h("tr", {}, h("td", {class: "none"},
    views.every(view => view.lag != null) ? "Every partition has caught up." : "No lag is known."))));
}

/** Shares of the actor's time by activity. */
function shares(view) {
  if (!view.times || !view.owned_since) return [];
  const [read, handle, commit] = view.times, busy = read + handle + commit;
  const all = Math.max(busy, now() - view.owned_since, 0.001);
  return [["read", read], ["handle", handle], ["commit", commit], ["wait", all - busy]].map(([name, spent]) => [name, spent / all]);
}

function mostly(view) {
  const busy = shares(view).filter(([name]) => name !== "wait").sort((a, b) => b[1] - a[1])[0];
  return busy && busy[1] >= 0.005 ? `${busy[0]} ${Math.round(busy[1] * 100)} %` : "–";
}

/** The chosen partition, with what the server says about it. */
async function partition() {
  const name = shown.view === "partition" ? shown.id : null, box = $("partition");
  $("map").mark(name);
  $("detail-title").textContent = name == null ? "Partition" : `Partition ${name}`;
  box.dataset.of = name ?? "";
  if (name == null) return box.replaceChildren(h("p", {class: "muted"}, "Choose a partition."));
  const asked = ++loaded;
  try {
    const [answer, series] = await Promise.all([
      get(`api/processors/${encodeURIComponent(shown.processor)}/partitions/${encodeURIComponent(name)}`), history.load(shown.processor, name)]);
    if (asked === loaded) box.replaceChildren(...detail({verdict: "ok", ...answer.partition}, answer), h("h3", {class: "small"}, "Last day"), ...history.draw(series, false));
  } catch (error) {
    if (asked === loaded) box.replaceChildren(h("p", {class: "muted"}, error.message));
  }
}

function detail(view, {explanation, history}) {
  const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, ...value)];
  const parts = shares(view), past = history.length > 1 ? history : fleet.history.get(view.partition) ?? [];
  return [
    h("p", {}, chip(view.verdict), " ", explanation),
    h("dl", {class: "facts"},
      fact("Owner", view.owner ?? "nobody", view.next_owner ? ` → ${view.next_owner}` : ""), fact("Epoch", count(view.epoch)),
      fact("Here for", view.owned_since ? `${duration(now() - view.owned_since)}${view.origin ? `: ${view.origin}` : ""}` : "–"),
      fact("Committed", ...view.sequence == null ? [view.state === "unread" ? "not read yet" : !view.owner || view.state === "running" ? "nothing yet" : "not reported yet"]
        : ["record ", h("a", {href: link(shown.processor, "record", `${view.partition}:${view.sequence}`)}, count(view.sequence))],
        view.last_commit ? `, ${duration(now() - view.last_commit)} ago` : ""),
      fact("Now", view.activity ? `${view.activity} for ${duration(now() - view.activity_since)}` : view.state ?? "–"),
      view.retry ? fact("Attempt in hand", `number ${view.retry[2]} failed at ${counted(view.retry[1], "record")} from ${count(view.retry[0])} on`,
        view.retry[3] && view.retry[3] > now() ? `; the next in ${duration(view.retry[3] - now())}` : "; the next runs") : [],
      fact("Records", count(view.counts?.records ?? 0)), fact("Rows", count(view.counts?.rows ?? 0)),
      fact("Dead letters", h("a", {href: `${link(shown.processor, "letters")}?partition=${encodeURIComponent(view.partition)}`}, count(view.counts?.dead_letters ?? 0))), sinks.facts(view.sinks ?? [], now())),
    h("h3", {class: "small"}, `Lag ${count(view.lag)}${view.lag_seconds ? `, oldest ${duration(view.lag_seconds)}` : ""}${fleet.chained ? `, end to end ${duration(view.lag_seconds_end_to_end)}` : ""}`), line(past, true),
    ...(parts.length ? [h("h3", {class: "small"}, "Where time goes"), bar(parts),
      h("p", {class: "legend"}, parts.map(([name, share]) => h("span", {}, h("i", {class: `dot ${name}`, "aria-hidden": "true"}), `${name} ${Math.round(share * 100)} %`)))] : []),
  ];
}

function bar(parts) {
  return h("div", {class: "bar", "aria-hidden": "true"}, parts.map(([name, share]) => {
    const part = h("i", {class: name});
    part.style.width = `${share * 100}%`;
    return part;
  }));
}

function tick() {
  const age = (performance.now() - fleet.heard) / 1000, beats = fleet.hosts.filter(host => host.alive).map(host => host.age + age);
  if (fleet.heard) $("live").textContent = beats.length ? `live, newest report ${duration(Math.min(...beats))} ago` : "live, no host reports";
}

start();
