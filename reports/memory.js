// The grid of KV memory, played back: a slider over the run's clock, all runs of the page at once. Each cell is one
// number: 0 free, 1 cached, 2 (i + 1) of request i, one more where nothing is computed yet. Without a script the page
// shows the frame in which memory is fullest.

const LASTS_MS = 20000; // of a whole run
const kindOf = (value, colours) =>
  value < 2 ? ["free", "cached"][value] : `held ${colours[((value >> 1) - 1) % colours.length]}${value & 1 ? " reserved" : ""}`;

function memoryOf(svg) {
  const told = JSON.parse(document.getElementById(`${svg.id}-data`).textContent);
  const cells = all("g", svg);
  const words = document.getElementById(`${svg.id}-words`);
  const frames = [];
  let state = new Int32Array(cells.length);
  for (const changes of told.changes) {
    state = state.slice();
    for (let i = 0; i < changes.length; i += 2) state[changes[i]] = changes[i + 1];
    frames.push(state);
  }
  let shown = told.at;
  const show = (at) => {
    const [before, after] = [frames[shown], frames[at]];
    for (let i = 0; i < cells.length; i++) {
      if (before[i] === after[i]) continue;
      cells[i].setAttribute("class", kindOf(after[i], told.colours));
      cells[i].lastChild.textContent = after[i] > 1 ? (after[i] >> 1) - 1 : "";
    }
    shown = at;
    words.textContent = told.words[at];
  };
  const frameAt = (seconds) => Math.max(told.s.findLastIndex((s) => s <= seconds), 0);
  return { begins: told.s[told.at], show: (seconds) => show(frameAt(seconds)) };
}

function player() {
  const slider = document.getElementById("clock");
  const end = Number(slider.dataset.end);
  const runs = all("svg.memory").map(memoryOf);
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
