// The explorer: controls whose values are asked of the server as they move. The newest question alone is shown; its
// picture is put in whole. The address holds what differs from where the page began, and the runs kept beside it.

const controls = all("[data-key]");
const picture = document.getElementById("picture");
const wrong = document.getElementById("wrong");
const SESSION = crypto.randomUUID();
const COLOURS = ["blue", "amber", "teal", "violet", "rose", "sky", "lime", "slate"];
const isNarrow = () => picture.clientWidth < 992; // as the stylesheet has it: 949 pixels and a card's edges
let number = 0; // of the newest question
let asking = null;
let kept = []; // states of runs beside this one

const stateNow = () => Object.fromEntries(controls.filter((c) => c.value !== c.dataset.base).map((c) => [c.dataset.key, c.value]));
const asText = (state) => new URLSearchParams(Object.entries(state).sort()).toString();

function put(state) {
  for (const control of controls) {
    control.value = state[control.dataset.key] ?? control.dataset.base;
    moved(control);
  }
}

// a slider without a number stands at its low end, pale
function moved(control) {
  const slider = sliderOf(control);
  if (!slider) return;
  slider.classList.toggle("unset", !control.value);
  if (control.value) placed(slider, Number(control.value));
  else slider.value = 0;
}

// the address
function written() {
  const own = new URLSearchParams(stateNow());
  own.sort();
  for (const state of kept) own.append("beside", asText(state));
  const text = own.toString();
  history.replaceState(null, "", text ? "#" + text : location.pathname);
}

function read() {
  const asked = new URLSearchParams(location.hash.slice(1));
  kept = asked.getAll("beside").slice(0, COLOURS.length - 1).map((text) => Object.fromEntries(new URLSearchParams(text)));
  asked.delete("beside");
  put(Object.fromEntries(asked));
}

// the newest question
let due = false;
function changed() {
  for (const control of controls) control.closest(".control").classList.toggle("moved", control.value !== control.dataset.base);
  number += 1;
  picture.setAttribute("aria-busy", "true");
  if (due) return;
  due = true;
  setTimeout(() => {
    due = false;
    ask();
  }, 16);
}

async function ask() {
  const [mine, state] = [number, stateNow()];
  written();
  listed();
  asking?.abort();
  asking = new AbortController();
  const beside = kept.filter((one) => asText(one) !== asText(state));
  const question = { session: SESSION, number: mine, states: [state, ...beside], narrow: isNarrow() };
  let answer;
  try {
    const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question), signal: asking.signal };
    answer = await (await fetch("/runs", sent)).json();
  } catch (error) {
    if (error.name === "AbortError" || mine !== number) return;
    answer = { error: "The server does not answer: start servesim explore again." };
  }
  if (mine !== number || answer.overtaken) return;
  shown(answer, asText(state));
}

function shown(answer, text) {
  picture.setAttribute("aria-busy", "false");
  picture.dataset.state = text;
  picture.dataset.number = number;
  wrong.hidden = !answer.error;
  wrong.textContent = answer.error || "";
  picture.innerHTML = answer.html || "";
  document.getElementById("took").textContent = answer.error ? "" : `drawn in ${digits(answer.seconds)} s`;
  enliven(picture);
  all(".copied", picture).forEach(withCopy);
  document.dispatchEvent(new CustomEvent("shown"));
}

function withCopy(card) {
  const button = make("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(card.querySelector("pre").textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  card.append(make("div", { class: "files" }, button));
}

// runs beside one another
function listed() {
  const words = (state) => Object.entries(state).map(([key, value]) => `${key} ${value || "unset"}`).join(", ") || "as it began";
  const own = make("span", { class: "chip" }, make("i", { style: "background: var(--blue)" }), `this run: ${words(stateNow())}`);
  const beside = kept.filter((one) => asText(one) !== asText(stateNow()));
  const others = beside.map((state, i) => {
    const chip = make("button", { type: "button", class: "chip", "aria-label": `Leave out: ${words(state)}` });
    chip.append(make("i", { style: `background: var(--${COLOURS[i + 1]})` }), `${words(state)} ×`);
    chip.addEventListener("click", () => {
      kept = kept.filter((one) => one !== state);
      changed();
    });
    return chip;
  });
  document.getElementById("kept").replaceChildren(own, ...others);
}

for (const control of controls) {
  const slider = sliderOf(control);
  control.addEventListener("input", () => {
    moved(control);
    changed();
  });
  slider?.addEventListener("input", () => {
    control.value = valueOf(slider);
    slider.classList.remove("unset");
    changed();
  });
}
document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("keep").addEventListener("click", () => {
  const state = stateNow();
  if (kept.length < COLOURS.length - 1 && !kept.some((one) => asText(one) === asText(state))) kept.push(state);
  changed();
});
document.getElementById("reset").addEventListener("click", () => {
  kept = [];
  put({});
  changed();
});
for (const chip of all("[data-state].chip")) {
  chip.addEventListener("click", () => {
    put(JSON.parse(chip.dataset.state));
    changed();
  });
}
addEventListener("hashchange", () => {
  read();
  changed();
});
let narrow = isNarrow();
addEventListener("resize", () => {
  if (narrow !== isNarrow()) changed();
  narrow = isNarrow();
});
read();
changed();
