// Brush and zoom: dragging across a panel shows that stretch of its x axis in every figure with the same axis. Escape,
// a double click or the button shows the whole again; + and - zoom where the arrow keys stand.

const zoomed = new Map(); // by axis: [from, to]; none: the whole
const axisKey = ({ x, y }) => (x?.scale === "linear" && x.label ? `${x.label} (${x.unit})` : null);
const wholes = new WeakMap(); // of an SVG: what data-axes said at first
const MOST = 200; // times: drawings are exact to a tenth of a pixel

function whole(svg) {
  if (!wholes.has(svg)) wholes.set(svg, JSON.parse(svg.dataset.axes));
  return wholes.get(svg);
}

const shared = (key) => all("svg[data-axes]").filter((svg) => whole(svg).some((panel) => axisKey(panel) === key));

function zoom(key, range) {
  const [from, to] = extent(key);
  const narrow = range && [Math.max(range[0], from), Math.min(range[1], to)];
  if (narrow && narrow[1] - narrow[0] < (to - from) / MOST) return;
  if (narrow && narrow[1] - narrow[0] < (to - from) * 0.999) zoomed.set(key, narrow);
  else zoomed.delete(key);
  hideTip();
  for (const svg of shared(key)) redraw(svg);
}

function extent(key) {
  const axes = shared(key).flatMap((svg) => whole(svg).filter((panel) => axisKey(panel) === key));
  return [Math.min(...axes.map(({ x }) => x.from)), Math.max(...axes.map(({ x }) => x.to))];
}

function shownOf(panel) { // its part of the stretch; the whole where it has none
  const range = zoomed.get(axisKey(panel));
  if (!range) return panel.x;
  const [from, to] = [Math.max(range[0], panel.x.from), Math.min(range[1], panel.x.to)];
  return to - from < (panel.x.to - panel.x.from) / MOST ? panel.x : { ...panel.x, from, to };
}

function redraw(svg) {
  const groups = all("g.axes", svg);
  const now = whole(svg).map((panel, i) => {
    const x = shownOf(panel);
    if (axisKey(panel)) stretch(groups[i], panel, x, x !== panel.x);
    return { ...panel, x };
  });
  svg.dataset.axes = JSON.stringify(now);
  svg.dispatchEvent(new Event("zoom"));
}

function stretch(group, { box: [left, top, right, bottom], x: full }, x, narrow) {
  const valueOf = (px) => full.from + ((px - left) / (right - left)) * (full.to - full.from);
  const moved = (px) => left + ((valueOf(px) - x.from) / (x.to - x.from)) * (right - left);
  const spans = (xs) => Math.min(...xs) <= left + 1 && Math.max(...xs) >= right - 1 && new Set(xs).size === 2;
  const path = (drawn) => {
    const d = (drawn.dataset.d ||= drawn.getAttribute("d"));
    const xs = [...d.matchAll(/(-?[\d.]+) -?[\d.]+/g)].map((found) => +found[1]);
    if (!spans(xs)) drawn.setAttribute("d", d.replace(/(-?[\d.]+) (-?[\d.]+)/g, (_, px, py) => `${moved(+px).toFixed(1)} ${py}`));
  };
  all("path[clip-path]", group).forEach(path);
  for (const mark of all("[clip-path] use", group)) {
    const at = (mark.dataset.x ||= mark.getAttribute("x"));
    if (+at >= left - 1) mark.setAttribute("x", moved(+at).toFixed(1));
    else path(document.getElementById(mark.getAttribute("xlink:href").slice(1))); // a filled shape, drawn where it is
  }
  ticks(group, { left, right, bottom }, x, narrow);
}

function ticks(group, { left, right, bottom }, x, narrow) {
  all(".zoomed", group).forEach((old) => old.remove());
  const marks = all("use", group).filter((mark) => !mark.closest("[clip-path]") && Math.abs(mark.getAttribute("y") - bottom) < 0.2);
  const labels = all("text", group).filter((text) => !text.classList.contains("zoomed") && text.style.textAnchor === "middle" && +text.getAttribute("y") > bottom && /^[\d.,]/.test(text.textContent));
  for (const old of [...marks, ...labels]) old.style.display = narrow ? "none" : "";
  if (!narrow || !labels.length) return;
  const wide = 10 ** Math.floor(Math.log10((x.to - x.from) / 5));
  const step = [1, 2, 5, 10].map((n) => n * wide).find((one) => (x.to - x.from) / one <= 6);
  for (let n = Math.ceil(x.from / step); n * step <= x.to; n++) {
    const label = labels[0].cloneNode();
    label.removeAttribute("transform");
    label.setAttribute("class", "zoomed");
    label.setAttribute("x", left + ((n * step - x.from) / (x.to - x.from)) * (right - left));
    label.style.display = "";
    label.style.textAnchor = "middle";
    label.textContent = UNITS[x.unit](Number((n * step).toPrecision(12)));
    group.append(label);
  }
}

function zoomAround(panel, px, factor) {
  const key = axisKey(panel);
  if (!key) return;
  const [from, to] = [panel.x.from, panel.x.to];
  const at = valueAt(panel.x, (px - panel.box[0]) / (panel.box[2] - panel.box[0]));
  zoom(key, [at - (at - from) * factor, at + (to - at) * factor]);
}

// by hand
function withBrush(svg) {
  const find = ({ x, y }) => whole(svg).find((panel) => axisKey(panel) && x >= panel.box[0] && x <= panel.box[2] && y >= panel.box[1] && y <= panel.box[3]);
  const inPixels = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const valueAtPixel = (panel, px) => {
    const { from, to } = shownOf(panel);
    return from + ((Math.min(Math.max(px, panel.box[0]), panel.box[2]) - panel.box[0]) / (panel.box[2] - panel.box[0])) * (to - from);
  };
  let begun = null;
  const drop = () => {
    begun?.band.remove();
    begun?.hand.abort();
    begun = null;
  };
  svg.addEventListener("pointerdown", (event) => {
    const at = inPixels(event);
    const panel = find(at);
    if (!panel || event.button || event.pointerType === "touch") return; // a finger scrolls
    event.preventDefault();
    const band = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [k, v] of Object.entries({ class: "brush", y: panel.box[1], height: panel.box[3] - panel.box[1], x: at.x, width: 0 })) band.setAttribute(k, v);
    svg.append(band);
    begun = { panel, x: at.x, band, hand: new AbortController() };
    const whileDown = { signal: begun.hand.signal };
    addEventListener("pointermove", stretch, whileDown);
    addEventListener("pointerup", release, whileDown);
    addEventListener("pointercancel", drop, whileDown);
  });
  const stretch = (event) => {
    const [left, , right] = begun.panel.box;
    const x = Math.min(Math.max(inPixels(event).x, left), right);
    begun.band.setAttribute("x", Math.min(x, begun.x));
    begun.band.setAttribute("width", Math.abs(x - begun.x));
  };
  const release = (event) => {
    const { panel, x } = begun;
    const end = inPixels(event).x;
    drop();
    if (Math.abs(end - x) > 6) zoom(axisKey(panel), [x, end].map((px) => valueAtPixel(panel, px)).sort((a, b) => a - b));
  };
  svg.addEventListener("dblclick", (event) => {
    const panel = find(inPixels(event));
    if (panel) zoom(axisKey(panel), null);
  });
}

function withReset(figure) {
  const axes = () => all("svg[data-axes]", figure).flatMap((svg) => whole(svg).map(axisKey)).filter((key) => zoomed.has(key));
  const button = make("button", { type: "button", class: "whole", hidden: "" }, "Show the whole");
  button.addEventListener("click", () => axes().forEach((key) => zoom(key, null)));
  figure.querySelector(".files").prepend(button);
  for (const svg of all("svg[data-axes]", figure)) svg.addEventListener("zoom", () => (button.hidden = !axes().length));
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape") [...zoomed.keys()].forEach((key) => zoom(key, null));
});

function withZoom(root) {
  zoomed.clear();
  all("svg[data-axes]", root).filter((svg) => whole(svg).some(axisKey)).forEach(withBrush);
  all("figure.card", root).forEach(withReset);
}

enliven(document);
withLinks();
