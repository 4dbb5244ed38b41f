// Two additions to pages that are complete without a script: reading values off a chart, and updates.
"use strict";

const REFRESH_MS = 5000;
const SVG = "http://www.w3.org/2000/svg";

const shown = (value) => Number(value.toPrecision(5)).toLocaleString("en-US", {maximumSignificantDigits: 5});

const linesOf = (chart) => [...chart.querySelectorAll(".line")].map((line) => ({
  name: line.dataset.name,
  points: line.dataset.values.split(" ").map((pair) => pair.split(",").map(Number)),
}));

const nearest = (points, x) => {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle; else high = middle;
  }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
};

const readOff = (chart, x) => {
  const [left, right] = chart.dataset.bounds.split(" ").map(Number);
  const plot = chart.querySelector(".plot");
  let cursor = plot.querySelector(".cursor");
  if (!cursor) {
    cursor = document.createElementNS(SVG, "path");
    cursor.setAttribute("class", "cursor");
    plot.append(cursor);
  }
  chart.at = Math.min(right, Math.max(left, x));
  cursor.setAttribute("d", `M${(1000 * (chart.at - left)) / (right - left)} 0v220`);
  const found = linesOf(chart).map(({name, points}) => [name, nearest(points, chart.at)]);
  const step = found.reduce((best, [, point]) => Math.abs(point[0] - chart.at) < Math.abs(best - chart.at) ? point[0] : best, Infinity);
  const values = found.map(([name, point]) => `${name} ${shown(point[1])}${point[0] === step ? "" : ` (at ${shown(point[0])})`}`);
  chart.parentElement.querySelector(".reading").textContent = `${chart.dataset.x} ${shown(step)}: ${values.join(", ")}`;
};

const chartOf = (event) => event.target.closest && event.target.closest(".chart[data-bounds]");

const point = (event) => {
  const chart = chartOf(event);
  if (!chart) return;
  const box = chart.querySelector(".plot").getBoundingClientRect();
  const [left, right] = chart.dataset.bounds.split(" ").map(Number);
  readOff(chart, left + ((right - left) * (event.clientX - box.left)) / box.width);
};
document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);

document.addEventListener("keydown", (event) => {
  const chart = chartOf(event);
  if (!chart || event.ctrlKey || event.altKey || event.metaKey) return;
  const [left, right] = chart.dataset.bounds.split(" ").map(Number);
  const at = chart.at === undefined ? right : chart.at, move = (right - left) / (event.shiftKey ? 10 : 50);
  const target = {ArrowLeft: at - move, ArrowRight: at + move, Home: left, End: right}[event.key];
  if (target === undefined) return;
  event.preventDefault();
  readOff(chart, target);
});

// Replaces the parts that have changed, but not the one in use: focus, selection and ticked boxes stay.
const pause = document.getElementById("pause");
let paused = false, served = new Map();

const remember = (root) => new Map([...root.querySelectorAll("[data-live]")].map((part) => [part.id, part.outerHTML]));

const update = async () => {
  if (paused || document.hidden) return;
  const response = await fetch(location.href, {cache: "no-store"});
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const fresh = remember(page), order = [...fresh.keys()].join("\n");
  const content = document.getElementById("content"), table = content.querySelector(".runs tbody");
  if (table && order !== [...served.keys()].join("\n") && !content.contains(document.activeElement)) {
    const ticked = new Set([...content.querySelectorAll("input:checked")].map((box) => box.id));
    content.replaceChildren(...page.getElementById("content").childNodes);
    for (const id of ticked) document.getElementById(id)?.setAttribute("checked", "");
    served = fresh;
  } else {
    for (const [id, html] of fresh) {
      const old = document.getElementById(id);
      if (!old || served.get(id) === html || old.contains(document.activeElement) || old.matches(":hover")) continue;
      const ticked = old.querySelector("input:checked") !== null, part = page.getElementById(id);
      if (ticked) part.querySelector("input")?.setAttribute("checked", "");
      old.replaceWith(part);
      served.set(id, html);
    }
    const tiles = content.querySelector(":scope > .tiles"), next = page.querySelector("#content > .tiles");
    if (tiles && next) tiles.replaceWith(next);
  }
  document.querySelector("#live span").textContent = page.querySelector("#live span").textContent;
};

const loop = async () => {
  try {
    await update();
  } catch (error) {
    document.querySelector("#live span").textContent = `no updates: ${error.message}`;
  }
  setTimeout(loop, REFRESH_MS);
};

if (pause) {
  pause.hidden = false;
  served = remember(document);
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
  });
  setTimeout(loop, REFRESH_MS);
}
