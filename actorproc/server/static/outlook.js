// How many hosts would be useful, and what the present load costs in a month.
import {get} from "./api.js";
import {count, counted, h, table} from "./format.js";

const money = dollars => `$${count(Math.round(dollars * 100) / 100)}`;

/** Elements for a processor. */
export async function load(processor) {
  const {scale, load: given, dollars, requests, prices, per_month: kinds} = await get(`api/processors/${encodeURIComponent(processor)}/cost`);
  const stores = Object.keys(dollars), detail = h("table", {});
  table(detail, [["Requests", ""], ["Verb", ""], ["Per month", "number"], ...stores.map(store => [`$ ${store}`, "number"])],
    kinds.map(kind => ({cells: [kind.purpose, kind.verb, count(kind.requests), ...stores.map(store => money(kind.dollars[store]))]})));
  const known = scale.per_second != null;
  const rate = !known ? "without records (their rate is not known yet)" : `at ${count(scale.per_second)} records per second`;
  return [
    h("p", {}, h("b", {}, known || !scale.running ? `${counted(scale.running, "host")} ${scale.running === 1 ? "runs" : "run"}, ${count(scale.hosts)} ${scale.hosts === 1 ? "is" : "are"} useful: ` : `${counted(scale.running, "host")}; how many are useful is not known yet: `), `${scale.reason}.`),
    h("p", {}, h("b", {}, stores.map(store => `${money(dollars[store])} at prices of ${store}`).join(", ")),
      ` for ${count(requests)} requests in a month like this: ${counted(given.hosts, "host")}, ${counted(given.partitions, "partition")}, ${rate}.`),
    h("details", {}, h("summary", {}, "By kind of request"), h("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Requests by kind"}, detail),
      h("p", {class: "muted"}, `Computed from the settings of this server; ${prices}, without storage.`)),
  ];
}
