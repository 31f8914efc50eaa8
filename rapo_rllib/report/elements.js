// What charts and reader share: elements from data, the data itself, numbers as text.
// Text reaches the page by textContent only: whatever a model wrote stays text.
"use strict";

const DATA = JSON.parse(document.getElementById("report-data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function byId(id) {
  return document.getElementById(id);
}

// element("p", {class: "soft"}, "text", child): null children are left out.
function element(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function drawing(name, attributes, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function shownNumber(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

// The options of a <select>: [value, text] pairs; keeps the present choice where it is still there.
function offer(select, options) {
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  if (options.some(([value]) => String(value) === chosen)) select.value = chosen;
}
