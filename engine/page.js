"use strict";
// The page has one state. Whatever is clicked or typed changes it, and all that depends on it is drawn again.
// page_attention.js, which comes before this in the page, draws what belongs to attention.

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
  if (given === undefined) return fill("next-rest", data.num_left_out ? "What is shown ends here." : "Here the text ends.");
  const bits = numbers.surprises[position + 1];
  fill("next-rest", "The text goes on with ", piece(given),
    `, ${likeliest(data.ranks[position + 1])}: ${percent(2 ** -bits)}.`);
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

function take(event, meaning) { // whether a key means something here; with others held down it is the browser's
  const isOurs = Boolean(meaning) && !event.ctrlKey && !event.metaKey && !event.altKey;
  if (isOurs) event.preventDefault();
  return isOurs;
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
  if (!take(event, targets[event.key])) return;
  change({ position: lastOf(targets[event.key]()) }, true);
}

function moveInMap(event) {
  const moves = {
    ArrowUp: { position: state.position - 1, key: state.key },
    ArrowDown: { position: Math.min(state.position + 1, positions - 1), key: state.key },
    ArrowLeft: { key: state.key - 1 },
    ArrowRight: { key: state.key + 1 },
  };
  if (!take(event, moves[event.key])) return;
  change(moves[event.key]);
}

function moveInScores(event) {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!take(event, step)) return;
  change({ key: state.key + step });
}

function moveInMaps(event) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!take(event, steps)) return;
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
