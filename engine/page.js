"use strict";
// The page has one state. Whatever is clicked or typed changes it, and all that depends on it is drawn again.

const data = JSON.parse(document.getElementById("data").textContent);
const { layers, heads, head_size: headSize, positions } = data.attention;
const numbers = {
  surprises: floats(data.surprises),
  probabilities: floats(data.probabilities),
  q: floats(data.attention.q),
  k: floats(data.attention.k),
  v: floats(data.attention.v),
  weights: floats(data.attention.weights),
};
const state = { position: data.start, layer: layers - 1, head: 0, key: 0, shade: "surprise" };
const unitOf = new Array(data.tokens.length); // of each token
data.units.forEach(([first, end], unit) => unitOf.fill(unit, first, end));

// --- What the numbers are

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

function weight(layer, head, row, column) {
  const triangle = (positions * (positions + 1)) / 2; // a row ends at its own position
  return numbers.weights[(layer * heads + head) * triangle + (row * (row + 1)) / 2 + column];
}

function vector(name, position) {
  const start = ((state.layer * heads + state.head) * positions + position) * headSize;
  return Array.from(numbers[name].subarray(start, start + headSize));
}

function bitsOf(unit) { // of the text's first token there is no surprise
  const [first, end] = data.units[unit];
  return numbers.surprises.subarray(Math.max(1, first), end).reduce((sum, bits) => sum + bits, 0);
}

function mostLookedAt(layer, head, row) { // all up to the row, the most looked at first
  const columns = Array.from({ length: row + 1 }, (_, column) => column);
  return columns.sort((a, b) => weight(layer, head, row, b) - weight(layer, head, row, a));
}

function isRecorded() {
  return state.position < positions;
}

// --- How things are called and shown

const NAMES = { " ": "␣", "\n": "↵", "\t": "⇥" };
const SPOKEN = { " ": "space", "\n": "newline", "\t": "tab" };

function visible(character) {
  if (NAMES[character]) return NAMES[character];
  if (/[\p{C}\p{Z}\ufe00-\ufe0f]/u.test(character)) {
    return "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  }
  return character;
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function standing(text) { // a mark that would stand on another character stands on a circle
  return text.replace(/^(?=\p{M})/u, "◌");
}

function chip(text) {
  return element("bdi", { className: "piece text" }, standing(Array.from(text, visible).join("")));
}

function piece(token) {
  const [kind, text] = data.pieces[token];
  return kind === "text" ? chip(text) : element("bdi", { className: "piece " + kind }, text);
}

function tokenAt(position) {
  return data.tokens[position];
}

function byId(id) {
  return document.getElementById(id);
}

function fill(id, ...children) {
  byId(id).replaceChildren(...children);
}

function fixed(number, digits = 4) {
  return number.toFixed(digits).replace("-", "−");
}

function percent(probability) {
  const share = 100 * probability;
  return (share >= 0.01 ? share.toFixed(2) : share.toPrecision(2)) + "\u00a0%";
}

function likeliest(rank) {
  if (rank === 1) return "the likeliest";
  const ending = { 1: "st", 2: "nd", 3: "rd" }[rank % 10];
  return `the ${rank.toLocaleString("en")}${Math.floor(rank / 10) % 10 === 1 ? "th" : ending || "th"} likeliest`;
}

// --- The text

const spans = [];

function buildText() {
  for (const [unit, [first, end]] of data.units.entries()) {
    const span = element("span", { tabIndex: -1 });
    span.setAttribute("role", "option");
    span.dataset.unit = unit;
    const spoken = SPOKEN[data.texts[unit]];
    if (spoken) span.setAttribute("aria-label", spoken);
    for (const character of standing(data.texts[unit])) {
      const shown = character === " " ? " " : visible(character);
      span.append(shown === character ? character : element("span", { className: "sign" }, shown));
      if (character === "\n") span.append("\n");
    }
    if (end - first > 1) span.className = "whole";
    spans.push(span);
  }
  byId("text").append(...spans);
  byId("left-out").hidden = data.num_left_out === 0;
  fill("left-out", `The text goes on: ${data.num_left_out.toLocaleString("en")} more tokens are not shown.`);
}

function shadeText() {
  const looks = state.shade === "attention";
  const shares = data.units.map(([first, end], unit) => {
    if (!looks) return Math.min(1, bitsOf(unit) / data.most_bits);
    let sum = 0;
    for (let column = first; isRecorded() && column < end && column <= state.position; column++) {
      sum += weight(state.layer, state.head, state.position, column);
    }
    return Math.sqrt(sum);
  });
  byId("text").dataset.shade = byId("scale").dataset.shade = state.shade;
  shares.forEach((share, unit) => spans[unit].style.setProperty("--share", share.toFixed(4)));
  const most = looks ? "1; the colour grows with the square root" : `${data.most_bits} bits and more`;
  fill("scale", "0", element("i"), most);
}

function selectInText(takeFocus) {
  const chosen = spans[unitOf[state.position]];
  for (const old of byId("text").querySelectorAll("[aria-selected=true]")) {
    old.setAttribute("aria-selected", "false");
    old.tabIndex = -1;
  }
  chosen.setAttribute("aria-selected", "true");
  chosen.tabIndex = 0;
  if (takeFocus) chosen.focus();
}

function describeUnit(unit, live = "polite") {
  const [first, end] = data.units[unit];
  const position = unit === unitOf[state.position] ? state.position : end - 1;
  const parts = [chip(data.texts[unit])];
  parts.push(end - first > 1 ? ` positions ${first} to ${end - 1}: ` : ` position ${first}: `);
  const bits = bitsOf(unit);
  if (end === 1) {
    parts.push("nothing stands before it, so it is not predicted.");
  } else {
    parts.push(element("b", {}, `${fixed(bits)} bits`), ` of surprise, probability ${percent(2 ** -bits)}`);
    if (first === 0) parts.push(" for all but the first token, before which nothing stands.");
    else parts.push(end - first > 1 ? "." : `, ${likeliest(data.ranks[first])}.`);
  }
  if (end - first > 1) {
    parts.push(" Its tokens:");
    for (let each = first; each < end; each++) {
      const bitsOfToken = each === 0 ? "" : ` ${fixed(numbers.surprises[each], 2)}`;
      const button = element("button", { type: "button" }, piece(tokenAt(each)), bitsOfToken);
      button.dataset.position = each;
      button.setAttribute("aria-pressed", String(each === position));
      parts.push(" ", button);
    }
  }
  byId("details").setAttribute("aria-live", live);
  fill("details", ...parts);
}

function unitBelow(unit, direction) {
  const here = spans[unit].getBoundingClientRect();
  let line = null, best = unit;
  for (let other = unit + direction; other >= 0 && other < spans.length; other += direction) {
    const there = spans[other].getBoundingClientRect();
    if (Math.abs(there.bottom - here.bottom) < 4) continue;
    line ??= there.bottom;
    if (Math.abs(there.bottom - line) > 4) break;
    const distance = Math.abs(there.left - here.left);
    if (best === unit || distance < Math.abs(spans[best].getBoundingClientRect().left - here.left)) best = other;
  }
  return best;
}

// --- What comes next

function drawNext() {
  const { position } = state, kept = data.likeliest[position].length, given = tokenAt(position + 1);
  fill("next-lead", "After ", piece(tokenAt(position)), ` at position ${position} the model expects:`);
  const items = data.likeliest[position].map((token, place) => {
    const probability = numbers.probabilities[position * kept + place];
    const bar = element("i");
    bar.style.width = `${100 * probability}%`;
    const number = element("span", { className: "number", title: String(probability) }, percent(probability));
    const item = element("li", {}, element("span", {}, piece(token)), number, bar);
    if (token === given) item.className = "given";
    return item;
  });
  fill("next", ...items);
  if (given === undefined) return fill("next-rest", "Here the text ends.");
  const bits = numbers.surprises[position + 1];
  fill("next-rest", "The text goes on with ", piece(given),
    `, ${likeliest(data.ranks[position + 1])}: ${percent(2 ** -bits)}.`);
}

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

// --- What the reader does

function change(changes, takeFocus = false) {
  const before = { ...state };
  Object.assign(state, changes);
  state.position = Math.max(0, Math.min(data.tokens.length - 1, state.position));
  if (isRecorded() && changes.key === undefined) [state.key] = mostLookedAt(state.layer, state.head, state.position);
  state.key = Math.max(0, Math.min(state.position, state.key));
  if (before.layer !== state.layer || before.head !== state.head) {
    paint(byId("map").querySelector("canvas"), state.layer, state.head);
  }
  draw(takeFocus);
}

function draw(takeFocus) {
  const redrawn = document.activeElement.closest("#details, #scores")?.id; // whose buttons are made anew
  shadeText();
  selectInText(takeFocus);
  describeUnit(unitOf[state.position]);
  drawNext();
  drawMaps();
  drawMap();
  drawFormula();
  if (redrawn) byId(redrawn).querySelector("button[aria-pressed=true]")?.focus({ preventScroll: true });
}

const lastOf = (unit) => data.units[Math.max(0, Math.min(spans.length - 1, unit))][1] - 1;

function moveInText(event) {
  const unit = unitOf[state.position];
  const targets = {
    ArrowLeft: () => unit - 1,
    ArrowRight: () => unit + 1,
    ArrowUp: () => unitBelow(unit, -1),
    ArrowDown: () => unitBelow(unit, 1),
    Home: () => 0,
    End: () => spans.length - 1,
  };
  if (!targets[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  change({ position: lastOf(targets[event.key]()) }, true);
}

function moveInMap(event) {
  const moves = {
    ArrowUp: { position: state.position - 1, key: state.key },
    ArrowDown: { position: Math.min(state.position + 1, positions - 1), key: state.key },
    ArrowLeft: { key: state.key - 1 },
    ArrowRight: { key: state.key + 1 },
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  change(moves[event.key]);
}

function moveInScores(event) {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  change({ key: state.key + step });
}

function moveInMaps(event) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!steps) return;
  event.preventDefault();
  const within = (index, number) => Math.max(0, Math.min(number - 1, index));
  change({ layer: within(state.layer + steps[0], layers), head: within(state.head + steps[1], heads) });
  byId("maps").querySelector("button[aria-pressed=true]").focus();
}

function listen() {
  const unitUnder = (event) => event.target.closest("[data-unit]")?.dataset.unit;
  const text = byId("text"), map = byId("map");
  text.addEventListener("click", (event) => {
    const unit = unitUnder(event);
    if (unit !== undefined) change({ position: lastOf(Number(unit)) }, true);
  });
  text.addEventListener("keydown", moveInText);
  text.addEventListener("pointerover", (event) => {
    const unit = unitUnder(event);
    if (unit !== undefined) describeUnit(Number(unit), "off");
  });
  text.addEventListener("pointerleave", () => describeUnit(unitOf[state.position], "off"));
  byId("details").addEventListener("click", (event) => {
    const position = event.target.closest("button")?.dataset.position;
    if (position !== undefined) change({ position: Number(position) });
  });
  for (const input of document.querySelectorAll("input[name=shade]")) {
    input.addEventListener("change", () => change({ shade: input.value, key: state.key }));
  }
  byId("maps").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    change({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
    byId("map").scrollIntoView({ block: "nearest" });
  });
  map.addEventListener("click", (event) => {
    const [position, key] = cellUnder(event);
    change(key <= position ? { position, key } : { position });
  });
  map.addEventListener("pointermove", (event) => describeCell(...cellUnder(event), "off"));
  map.addEventListener("pointerleave", () => describeCell(state.position, state.key, "off"));
  map.addEventListener("keydown", moveInMap);
  byId("maps").addEventListener("keydown", moveInMaps);
  byId("scores").addEventListener("click", (event) => {
    const column = event.target.closest("tr")?.dataset.column;
    if (column !== undefined) change({ key: Number(column) });
  });
  byId("scores").addEventListener("keydown", moveInScores);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintAll);
}

fill("facts", data.facts);
buildText();
buildMaps();
paintAll();
listen();
change({});
