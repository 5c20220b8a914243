"use strict";
// Where the heads look: the maps, and the formula worked out. The state is page.js's.

// --- The maps of all heads

const canvases = []; // [layer][head]

function buildMaps() {
  for (let layer = 0; layer < layers; layer++) {
    const row = element("div", { className: "layer" });
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", `Layer ${layer}`);
    canvases.push([]);
    for (let head = 0; head < heads; head++) {
      const canvas = element("canvas", { width: positions, height: positions });
      const map = element("span", { className: "map" }, canvas, element("i", { className: "row" }));
      const button = element("button", { type: "button" }, `head ${head}`, map, element("span", { className: "looks" }));
      Object.assign(button.dataset, { layer, head });
      canvases[layer].push(canvas);
      row.append(button);
    }
    byId("maps").append(element("h3", {}, `Layer ${layer}`), row);
  }
}

function paint(canvas, layer, head) {
  const style = getComputedStyle(document.documentElement);
  const colour = style.getPropertyValue("--look").trim().split(" ").map(Number);
  const image = new ImageData(positions, positions);
  for (let row = 0; row < positions; row++) {
    for (let column = 0; column < positions; column++) {
      const strength = column > row ? 0 : Math.sqrt(weight(layer, head, row, column));
      const shade = column > row ? [128, 128, 128, 28] : [...colour, 255 * strength];
      image.data.set(shade, 4 * (row * positions + column));
    }
  }
  canvas.width = canvas.height = positions;
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function paintAll() {
  canvases.forEach((row, layer) => row.forEach((canvas, head) => paint(canvas, layer, head)));
  paint(byId("map").querySelector("canvas"), state.layer, state.head);
}

function drawMaps() {
  const { position } = state;
  const recorded = isRecorded();
  for (const section of document.querySelectorAll(".recorded")) section.hidden = !recorded;
  fill("maps-lead", ...(recorded
    ? ["The line is ", piece(tokenAt(position)), ` at position ${position}; below each map the two that it looks at most.`]
    : [`Attention is kept for positions 0 to ${positions - 1}: for one window at most, and so many that the page stays ` +
       "small. Select one of these, or make a page of a later part of the text. Behind the first window a character is " +
       "read with at least half a window before it."]));
  const shape = document.documentElement.style;
  shape.setProperty("--step", 1 / positions);
  shape.setProperty("--row", recorded ? position / positions : 2);
  shape.setProperty("--column", state.key / positions);
  for (const button of document.querySelectorAll("#maps button")) {
    const layer = Number(button.dataset.layer), head = Number(button.dataset.head);
    const isSelected = layer === state.layer && head === state.head;
    button.setAttribute("aria-pressed", String(isSelected));
    button.tabIndex = isSelected ? 0 : -1;
    button.disabled = !recorded;
    const looks = button.querySelector(".looks");
    if (!recorded) { looks.replaceChildren(" "); continue; }
    looks.replaceChildren(...mostLookedAt(layer, head, position).slice(0, 2).flatMap((column) =>
      [piece(tokenAt(column)), element("sub", {}, String(column)),
        ` ${weight(layer, head, position, column).toFixed(2).replace(/^0/, "")} `]));
  }
}

function drawMap() {
  fill("map-heading", `Layer ${state.layer}, head ${state.head}`);
  byId("map").setAttribute("aria-label", `Attention of layer ${state.layer}, head ${state.head}; arrow keys move`);
  describeCell(state.position, state.key);
}

function describeCell(row, column, live = "polite") {
  if (row >= positions) return;
  byId("cell").setAttribute("aria-live", live);
  const looks = [piece(tokenAt(row)), ` at ${row} looks at `, piece(tokenAt(column)), ` at ${column}: `];
  if (column > row) return fill("cell", ...looks, "never; it comes later.");
  fill("cell", ...looks, element("b", {}, fixed(weight(state.layer, state.head, row, column), 6)));
}

function cellUnder(event) {
  const box = byId("map").querySelector("canvas").getBoundingClientRect();
  const index = (share) => Math.max(0, Math.min(positions - 1, Math.floor(share * positions)));
  return [index((event.clientY - box.top) / box.height), index((event.clientX - box.left) / box.width)];
}

// --- The formula, step by step

function drawFormula() {
  if (!isRecorded()) return;
  const { position, key, layer, head } = state;
  const q = vector("q", position), root = Math.sqrt(headSize);
  const dots = Array.from({ length: position + 1 }, (_, column) => dot(q, vector("k", column)));
  const highest = Math.max(...dots) / root;
  const powers = dots.map((each) => Math.exp(each / root - highest));
  const weights = dots.map((_, column) => weight(layer, head, position, column));
  const total = powers.reduce((sum, power) => sum + power, 0);
  fill("formula", element("code", {}, `softmax(Q·Kᵀ / √${headSize}) · V`),
    ` for `, piece(tokenAt(position)), ` at position ${position}, layer ${layer}, head ${head}.` + data.note);
  fill("scores-lead", `The query of position ${position} meets the key of each position up to its own. ` +
    `q·k is divided by √${headSize} = ${fixed(root, 3)}; softmax makes weights of these scores: e to the power of ` +
    `each less the highest (${fixed(highest, 3)}; taking it off changes nothing), divided by their sum. Select a row.`);
  const rows = dots.map((each, column) => {
    const bar = element("i");
    bar.style.width = `${100 * weights[column]}%`;
    const button = element("button", { type: "button", tabIndex: column === key ? 0 : -1 }, piece(tokenAt(column)));
    button.setAttribute("aria-label", `position ${column}, weight ${fixed(weights[column])}`);
    button.setAttribute("aria-pressed", String(column === key));
    const row = tableRow("td", column, button, fixed(each), fixed(each / root), fixed(powers[column]),
      fixed(weights[column]), bar);
    row.dataset.column = column;
    if (column === key) row.className = "selected";
    return row;
  });
  const sums = tableRow("td", "", "sum", "", "", fixed(total), fixed(weights.reduce((sum, each) => sum + each, 0)), "");
  const head_ = tableRow("th", "at", "key of", "q·k", `/ √${headSize}`, "e^(…)", "weight", "");
  fill("scores", element("table", {}, element("thead", {}, head_), element("tbody", {}, ...rows),
    element("tfoot", {}, sums)));
  const scores = byId("scores"), chosen = rows[key];
  scores.scrollTop = chosen.offsetTop - scores.clientHeight / 2;
  drawVectors(q, weights);
}

function drawVectors(q, weights) {
  const { position, key } = state;
  const k = vector("k", key), v = vector("v", key);
  fill("dot-heading", "2. One of these scores: q·k of ", piece(tokenAt(key)), ` at position ${key}`);
  const products = q.map((each, index) => each * k[index]);
  fill("dot", vectorTable([`q of ${position}`, q], [`k of ${key}`, k], ["q × k", products, dot(q, k)]));
  const mixed = new Array(headSize).fill(0);
  weights.forEach((share, column) => vector("v", column).forEach((each, index) => { mixed[index] += share * each; }));
  fill("sum-lead", `Each value times its weight, and all added up. This head hands the sum to ` +
    "the output projection, beside those of the other heads.");
  fill("sum", vectorTable([`v of ${key}`, v], [`× ${fixed(weights[key])}`, v.map((each) => each * weights[key])],
    [`sum of ${position + 1}`, mixed]));
}

function dot(a, b) {
  return a.reduce((sum, each, index) => sum + each * b[index], 0);
}

function tableRow(cell, ...contents) {
  return element("tr", {}, ...contents.map((content) => element(cell, {}, content)));
}

function vectorTable(...rows) {
  const body = rows.map(([name, values, sum]) => {
    const largest = Math.max(...values.map(Math.abs), 1e-9);
    const cells = values.map((value) => {
      const cell = element("td", { className: value < 0 ? "minus" : "plus", title: String(value) }, fixed(value, 3));
      cell.style.setProperty("--strength", (0.45 * Math.abs(value) / largest).toFixed(3));
      return cell;
    });
    const total = sum === undefined ? [] : [element("th", {}, `sum ${fixed(sum)}`)];
    return element("tr", {}, element("th", {}, name), ...total, ...cells);
  });
  const spans = rows.some(([, , sum]) => sum !== undefined);
  if (spans) body.slice(0, -1).forEach((row) => row.firstChild.after(element("th")));
  return element("table", {}, element("tbody", {}, ...body));
}
