"use strict";
const byId = (id) => document.getElementById(id);
const read = (id) => JSON.parse(byId(id).textContent);

// --- tables: a click on a heading sorts, numbers by their values ---------------------------------

function orderOf(cell) {
  const text = cell.dataset.order ?? cell.textContent.trim();
  if (text === "-inf") return -Infinity;
  const number = text === "" ? NaN : Number(cell.dataset.order ?? text.split(" ")[0]);
  return Number.isNaN(number) ? text : number;
}

function sortBy(table, column, heading) {
  const body = table.tBodies[0];
  const values = new Map([...body.rows].map((row) => [row, orderOf(row.cells[column])]));
  const numeric = [...values.values()].every((value) => typeof value === "number");
  // The first click puts the best likelihood on top, and everything else in rising order.
  const before = heading.getAttribute("aria-sort");
  const down = before ? before === "ascending" : numeric && /nats/.test(heading.textContent)
    && !/KL/.test(heading.textContent);
  const compare = (a, b) => numeric ? a - b : String(a).localeCompare(String(b), "en", {numeric: true});
  const missing = (row) => values.get(row) === -Infinity;
  const rows = [...body.rows].sort((one, other) => missing(one) - missing(other)
    || (down ? -1 : 1) * compare(values.get(one), values.get(other)));
  table.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const cells = [...table.tBodies[0].rows].map((row) => row.cells[column]);
    if (column > 0 && cells.every((cell) => typeof orderOf(cell) === "number"))
      for (const each of [heading, ...cells]) each.classList.add("number");
    heading.querySelector("button").onclick = () => sortBy(table, column, heading);
  });
}

// --- images over training, commands to copy, runs to open ----------------------------------------

for (const gallery of document.querySelectorAll(".gallery")) {
  const slider = gallery.querySelector("input[type=range]");
  if (!slider) continue;
  slider.oninput = () => {
    for (const figure of gallery.querySelectorAll("figure")) {
      const images = [...figure.querySelectorAll("img")];
      const shown = Math.round(slider.value * (images.length - 1));
      images.forEach((image, place) => { image.hidden = place !== shown; });
      figure.querySelector("span").textContent = images[shown].dataset.caption;
    }
  };
}

for (const button of document.querySelectorAll(".copy")) {
  button.onclick = () => {
    const code = button.parentElement.querySelector("code");
    getSelection().selectAllChildren(code);
    document.execCommand("copy"); // navigator.clipboard is not there for files
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  };
}

function openTarget() {
  const target = location.hash && byId(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();

// --- curves ---------------------------------------------------------------------------------------

const data = read("data"), colours = read("colours");
const dashes = [["solid", ""], ["dash", "7 4"], ["dot", "2 3"], ["dashdot", "7 3 2 3"]];
const off = {}; // the lines that are switched off, by view
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const view = () => data.views[byId("view").value];

function styles(lines) {
  // A method has one colour; its seeds differ in their dashes. Past the last colour, dashes too.
  const seen = {};
  return lines.map(({group}) => {
    const seed = seen[group] = (seen[group] ?? -1) + 1;
    const colour = colours[group % colours.length];
    const dash = dashes[(Math.floor(group / colours.length) + seed) % dashes.length];
    return {colour: colour === "#000000" ? css("--ink") : colour, dash};
  });
}

function traces(axis) {
  const found = [], {lines, columns} = view(), curve = columns[byId("column").value];
  const style = styles(lines), hidden = off[byId("view").value];
  curve.lines.forEach((line, place) => {
    if (!line) return;
    const {x, y, deviation} = line[axis], {colour, dash} = style[place];
    const shared = {x, visible: !hidden.has(place), name: lines[place].name};
    if (deviation && x.length > 1) {
      const ends = [y.map((v, i) => v - deviation[i]), y.map((v, i) => v + deviation[i])];
      found.push(
        {...shared, y: ends[0], mode: "lines", line: {width: 0}, hoverinfo: "skip"},
        {...shared, y: ends[1], mode: "lines", line: {width: 0}, hoverinfo: "skip", fill: "tonexty",
         fillcolor: colour + "2e"});
    }
    found.push({
      ...shared, y, mode: x.length < 13 ? "lines+markers" : "lines", marker: {size: 5},
      line: {color: colour, dash: dash[0], width: 1.8},
      customdata: deviation ? deviation.map((v) => ` ± ${v.toPrecision(3)}`) : x.map(() => ""),
      hovertemplate: "%{y:.5g}%{customdata}<extra>%{fullData.name}</extra>",
      error_y: deviation && x.length === 1 ? {array: deviation} : undefined,
    });
  });
  return found;
}

function layout(axis) {
  const {label} = data.columns.find(({name}) => name === byId("column").value);
  const {range} = view().columns[byId("column").value];
  const lines = {gridcolor: css("--grid"), zeroline: false, linecolor: css("--line")};
  const words = {epoch: "epochs", seconds: "seconds of training"};
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    modebar: {bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: css("--accent")},
    font: {color: css("--ink"), size: 12, family: getComputedStyle(document.body).fontFamily},
    margin: {l: 64, r: 12, t: 28, b: 44}, hovermode: "x",
    hoverlabel: {bgcolor: css("--panel"), bordercolor: css("--line"), font: {color: css("--ink")},
                 namelength: -1},
    xaxis: {...lines, title: {text: words[axis]}, rangemode: "tozero", type: byId("log").checked ? "log" : "linear"},
    yaxis: {...lines, title: {text: label}, automargin: true, ...(range ? {range} : {})},
  };
}

function draw() {
  for (const axis of ["epoch", "seconds"])
    Plotly.react(byId(axis), traces(axis), layout(axis), {responsive: true, displaylogo: false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]});
  const {cut} = view().columns[byId("column").value];
  byId("cut").textContent = cut.length ? `Cut, so that they do not flatten the others: ${cut.join("; ")}.` : "";
  document.body.dataset.drawn = byId("column").value;
}

function legend() {
  const {lines} = view(), hidden = off[byId("view").value];
  const buttons = lines.map(({name}, place) => {
    const {colour, dash} = styles(lines)[place];
    const button = document.createElement("button");
    button.innerHTML = `<svg><line x1="0" y1="5" x2="30" y2="5" stroke="${colour}"
      stroke-width="2.5" stroke-dasharray="${dash[1]}"/></svg>`;
    button.append(name);
    button.setAttribute("aria-pressed", !hidden.has(place));
    button.onclick = () => {
      if (!hidden.delete(place)) hidden.add(place);
      update();
    };
    button.ondblclick = () => {
      const alone = lines.every((_, other) => other === place || hidden.has(other));
      hidden.clear();
      if (!alone) lines.forEach((_, other) => { if (other !== place) hidden.add(other); });
      update();
    };
    return button;
  });
  byId("legend").replaceChildren(...buttons);
}

function update() {
  const {lines} = view(), hidden = off[byId("view").value];
  [...byId("legend").children].forEach((button, place) =>
    button.setAttribute("aria-pressed", !hidden.has(place)));
  draw();
}

function options(select, pairs) {
  select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
}

async function start() {
  const words = {methods: "mean ± deviation over seeds", runs: "each run"};
  const views = Object.keys(words).filter((name) => name in data.views);
  for (const name of views) off[name] = new Set();
  options(byId("view"), views.map((name) => [name, words[name]]));
  byId("view-label").hidden = views.length < 2;
  options(byId("column"), data.columns.map(({name}) => [name, name]));
  const packed = Uint8Array.from(atob(byId("plotly").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  legend();
  draw();
  byId("column").onchange = byId("log").onchange = draw;
  byId("view").onchange = () => { legend(); draw(); };
  byId("all").onclick = () => { off[byId("view").value].clear(); update(); };
  byId("none").onclick = () => {
    view().lines.forEach((_, place) => off[byId("view").value].add(place));
    update();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { legend(); draw(); });
}

start().catch((error) => {
  byId("cut").textContent = `The curves could not be drawn: ${error}. A newer browser may help.`;
  document.body.dataset.failed = error;
});
