"use strict";
// What the pages of a node and of a coordinator have in common; put into them when they are read.
const EVERY_MS = 1000, SVG = "http://www.w3.org/2000/svg";
const $ = id => document.getElementById(id);

function node(kind, attributes, text) {  // of a drawing
  const out = document.createElementNS(SVG, kind);
  for (const key in attributes) out.setAttribute(key, attributes[key]);
  if (text !== undefined) out.textContent = text;
  return out;
}
function element(kind, text, name) {
  const out = document.createElement(kind);
  if (text !== undefined) out.textContent = text;
  if (name) out.className = name;
  return out;
}
function short(x, digits = 1) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(x) >= size) return (x / size).toFixed(1) + " " + unit;
  return x.toFixed(Number.isInteger(x) && digits < 2 ? 0 : digits);
}
const percent = x => x === null || x === undefined ? "–" : (100 * x).toFixed(1) + " %";

function boxes(entries) {  // the large figures at the top
  $("figures").replaceChildren(...entries.map(([value, label]) => {
    const box = element("div");
    box.append(element("b", value), element("small", label));
    return box;
  }));
}
function table(columns, members) {
  const head = element("tr");
  head.append(...columns.map(([title]) => element("th", title)));
  $("members").tHead.replaceChildren(head);
  $("members").tBodies[0].replaceChildren(...members.map(m => {
    const row = element("tr");
    row.append(...columns.map(([title, value]) => {
      const cell = element("td", value(m), title === "state" ? m.state : "");
      if (title === "state" && m.reason) cell.title = m.reason;
      return cell;
    }));
    return row;
  }));
}
function frame(width, height, x, y, formatX, formatY) {  // axes, and where a point is between them
  const parts = [], left = 44, bottom = height - 24;
  for (let i = 0; i <= 4; i++) {
    const at = bottom - i * (bottom - 10) / 4;
    parts.push(node("line", { x1: left, x2: width - 6, y1: at, y2: at, class: "axis" }));
    parts.push(node("text", { x: left - 4, y: at + 4, "text-anchor": "end" }, formatY(y[0] + i * (y[1] - y[0]) / 4)));
  }
  for (let i = 0; i <= 2; i++)
    parts.push(node("text", { x: left + i * (width - 12 - left) / 2, y: height - 8,
      "text-anchor": ["start", "middle", "end"][i] }, formatX(x[0] + i * (x[1] - x[0]) / 2)));
  return { parts, px: v => left + (v - x[0]) / (x[1] - x[0] || 1) * (width - 6 - left),
           py: v => bottom - (v - y[0]) / (y[1] - y[0] || 1) * (bottom - 10) };
}
// What a point of a curve has where, and how it is drawn: [column, name, look].
const LOSSES = [[2, "training loss", { "stroke-width": 1, "stroke-opacity": 0.5 }],
  [6, "validation loss", { "stroke-dasharray": "5 3" }], [5, "test loss", {}]];
const ACCURACIES = [[7, "validation accuracy", { "stroke-dasharray": "5 3" }], [3, "accuracy", {}]];

function curve(f, points, colour, look = {}) {
  return node("polyline", { points: points.map(([x, y]) => f.px(x).toFixed(1) + "," + f.py(y).toFixed(1)).join(" "),
    fill: "none", stroke: colour, "stroke-width": 1.6, "stroke-linejoin": "round", class: "curve", ...look });
}
function nothing(id, height) {
  $(id).replaceChildren(node("text", { x: 200, y: height / 2, "text-anchor": "middle" }, "nothing yet"));
}
async function watch(file, who, show) {  // for ever
  try {
    const answer = await fetch(file, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    show(await answer.json());
    $("lost").textContent = "";
    document.body.dataset.turns = Number(document.body.dataset.turns || 0) + 1;
  } catch (error) {
    $("lost").textContent = who + " does not answer; asking again";
  }
  setTimeout(watch, EVERY_MS, file, who, show);
}
