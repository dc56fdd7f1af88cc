// The grid of KV memory, played back: a slider over the run's clock, all runs of the page at once. Each cell is one
// number: 0 free, 1 cached, 2 (i + 1) of request i, one more where nothing is computed yet. Of a prefix cache the same
// cells stand in a tree, too: `links` say which cell follows which.
// Without a script the page shows the frame in which memory is fullest.

const LASTS_MS = 20000; // of a whole run
const kindOf = (value, colours) =>
  value < 2 ? ["free", "cached"][value] : `held ${colours[((value >> 1) - 1) % colours.length]}${value & 1 ? " reserved" : ""}`;

// The cells of one drawing: told their numbers, they show them.
function cellsOf(svg, colours) {
  const cells = all("g", svg);
  let shown = null;
  return (values) => {
    for (let i = 0; i < cells.length; i++) {
      if (shown && shown[i] === values[i]) continue;
      cells[i].setAttribute("class", kindOf(values[i], colours));
      cells[i].lastChild.textContent = values[i] > 1 ? (values[i] >> 1) - 1 : "";
    }
    shown = values;
  };
}

// Sizes and lines as playback_page.py has them.
const [SIDE, GUTTER] = [26, 8];
const stem = (before, row) => // from a block to the one before it
  before === row
    ? ""
    : `M1 ${SIDE / 2}H-${GUTTER / 2}V${(before - row) * SIDE + SIDE / 2}H-${GUTTER + 1}`;

// The cells of a tree: told a frame's number and its values, they stand where prefix_tree.py has them.
function treeOf(svg, frames) {
  const cells = all("g", svg);
  let [links, next] = [new Map(), 0]; // by cell: the one before it and its column, the newest last; before frame `next`
  const go = (at) => {
    if (at < next) [links, next] = [new Map(), 0];
    for (; next <= at; next++) {
      const changes = frames[next];
      for (let i = 0; i < changes.length; i += 3) {
        links.delete(changes[i]);
        links.set(changes[i], [changes[i + 1], changes[i + 2]]);
      }
    }
  };
  return (at, values) => {
    go(at);
    for (const [cell, [column, row, before]] of placesOf(links, values)) {
      cells[cell].setAttribute("transform", `translate(${column * (SIDE + GUTTER)} ${row * SIDE})`);
      cells[cell].firstChild.setAttribute("d", stem(before, row));
    }
  };
}

function placesOf(links, values) {
  const children = new Map();
  for (const [cell, [before]] of links) {
    if (values[cell] === 0) continue;
    const key = before >= 0 && values[before] ? before : -1;
    if (!children.has(key)) children.set(key, []);
    children.get(key).push(cell);
  }
  const found = new Map();
  let rows = 0;
  const left = (children.get(-1) ?? []).toReversed();
  while (left.length) {
    const cell = left.pop();
    const [before, column] = links.get(cell);
    const parent = found.get(before);
    const own = parent && children.get(before)[0] === cell ? parent[1] : rows;
    rows = Math.max(rows, own + 1);
    found.set(cell, [column, own, parent ? parent[1] : own]);
    left.push(...(children.get(cell) ?? []).toReversed());
  }
  return found;
}

function memoryOf(svg) {
  const told = JSON.parse(document.getElementById(`${svg.id}-data`).textContent);
  const words = document.getElementById(`${svg.id}-words`);
  const frames = [];
  let state = new Int32Array(all("g", svg).length);
  for (const changes of told.changes) {
    state = state.slice();
    for (let i = 0; i < changes.length; i += 2) state[changes[i]] = changes[i + 1];
    frames.push(state);
  }
  const tree = document.getElementById(`${svg.id}-tree`);
  const drawn = [svg, tree].filter(Boolean).map((one) => cellsOf(one, told.colours));
  const place = tree ? treeOf(tree, told.links) : () => {};
  const show = (at) => {
    place(at, frames[at]);
    for (const draw of drawn) draw(frames[at]);
    words.textContent = told.words[at];
  };
  const frameAt = (seconds) => Math.max(told.s.findLastIndex((s) => s <= seconds), 0);
  return { begins: told.s[told.at], show: (seconds) => show(frameAt(seconds)) };
}

function player() {
  const slider = document.getElementById("clock");
  const end = Number(slider.dataset.end);
  const runs = all("svg.memory:not(.tree)").map(memoryOf);
  const now = document.getElementById("now");
  const button = document.getElementById("play");
  const steps = Number(slider.max);
  const show = (share) => {
    const seconds = share * end;
    const said = seconds < 10 ? `${seconds.toFixed(3)} s` : `${seconds.toFixed(1)} s`;
    now.textContent = said;
    slider.setAttribute("aria-valuetext", said);
    for (const run of runs) run.show(seconds);
    document.documentElement.style.setProperty("--played", share);
  };
  let [playing, begun] = [false, 0];
  const stop = () => {
    playing = false;
    button.textContent = "Play";
  };
  const tick = (at) => {
    if (!playing) return;
    const share = Math.min((at - begun) / LASTS_MS, 1);
    slider.value = share * steps;
    show(share);
    if (share < 1) requestAnimationFrame(tick);
    else stop();
  };
  button.addEventListener("click", () => {
    if (playing) return stop();
    playing = true;
    button.textContent = "Pause";
    const from = Number(slider.value) >= steps ? 0 : Number(slider.value) / steps;
    begun = performance.now() - from * LASTS_MS;
    requestAnimationFrame(tick);
  });
  slider.addEventListener("input", () => {
    stop();
    show(Number(slider.value) / steps);
  });
  document.querySelector(".player").hidden = false;
  slider.value = Math.round((runs[0].begins / end) * steps);
  show(runs[0].begins / end);
}
player();
