// Controls of the canvases, and what follows from them. The address holds what differs from the page's beginning
// (#kv.tokens=32768&speculation.alpha=0.6).

const controlsOf = (section) => all("[data-key]", section);
const isNumber = (control) => Boolean(sliderOf(control));

function move(control) {
  if (isNumber(control)) placed(sliderOf(control), Number(control.value));
}

function valuesOf(section) {
  const values = {};
  for (const control of controlsOf(section)) {
    const slider = sliderOf(control);
    values[control.dataset.key] = slider ? Number(control.value || NaN) : control.value;
    if (!slider) continue;
    const [low, high, value] = [+slider.dataset.low, +slider.dataset.high, values[control.dataset.key]];
    const label = control.closest(".control").querySelector("label").textContent;
    if (!(value >= low && value <= high)) return { wrong: `${label}: a number from ${low} to ${high}` };
    if ("whole" in slider.dataset && !Number.isInteger(value)) return { wrong: `${label}: a whole number` };
  }
  return values;
}

function show(section) {
  const values = valuesOf(section);
  const found = values.wrong ? values : CANVASES[section.dataset.canvas](values);
  const wrong = section.querySelector(".alert");
  wrong.hidden = !found.wrong;
  wrong.textContent = found.wrong || "";
  section.querySelector(".answer-of").hidden = Boolean(found.wrong);
  if (found.wrong) return;
  section.querySelector(".tiles").replaceChildren(
    ...found.tiles.map(({ name, value, text, unit }) =>
      make("div", { class: "tile" }, make("h2", {}, name), make("p", { class: "big", "data-value": value }, text, make("small", {}, unit)))),
  );
  const figure = section.querySelector("figure");
  const [name, width] = [section.dataset.canvas, Math.max(figure.clientWidth - 40, 260)];
  figure.querySelector("h3").textContent = found.chart.title;
  const item = ({ name: words, colour }) => make("li", {}, make("i", { style: `background: var(--${colour})` }), words);
  figure.querySelector(".legend").replaceChildren(...found.chart.lines.map(item));
  const drawing = drawn(found.chart, name, width);
  figure.querySelector(".drawing").replaceWith(make("div", { class: "drawing" }, drawing));
  withHand(drawing);
  if (found.table) section.querySelector(".scroll").replaceChildren(tabled(found.table));
}

function tabled({ head, rows }) {
  const row = (kind, cells) => make("tr", {}, ...cells.map((text) => make(kind, { class: "n" }, text)));
  return make("table", {}, make("thead", {}, row("th", head)), make("tbody", {}, ...rows.map((cells) => row("td", cells))));
}

// the address
function written() {
  const state = new URLSearchParams();
  for (const section of sections)
    for (const control of controlsOf(section))
      if (control.value !== control.dataset.base) state.set(`${section.dataset.canvas}.${control.dataset.key}`, control.value);
  const text = state.toString();
  history.replaceState(null, "", text ? "#" + text : location.pathname);
}

function readAddress() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const section of sections)
    for (const control of controlsOf(section)) {
      const value = state.get(`${section.dataset.canvas}.${control.dataset.key}`);
      if (value !== null) control.value = value;
      move(control);
    }
}

// a model brings its shape
function follow(section, control) {
  if (control.dataset.key !== "model") return;
  for (const other of controlsOf(section).filter(isNumber))
    if (other.dataset.key in DATA.models[control.value]) {
      other.value = DATA.models[control.value][other.dataset.key];
      move(other);
    }
}

const sections = all("[data-canvas]");
for (const section of sections) {
  for (const control of controlsOf(section)) {
    control.addEventListener("input", () => {
      follow(section, control);
      move(control);
      written();
      show(section);
    });
    sliderOf(control)?.addEventListener("input", (event) => {
      control.value = valueOf(event.target);
      written();
      show(section);
    });
  }
  section.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
}
addEventListener("resize", () => sections.forEach(show));
readAddress();
sections.forEach(show);
