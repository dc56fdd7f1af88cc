"use strict";
// What a page does beyond being read: values on hover and by arrow keys, series on and off, sorted and filtered tables,
// links to sections, figures as files; zoom.js follows in the same script. Without it the page says the same. Geometry
// is read from the drawings; what pixels mean comes from data-axes: a list of {box: [left, top, right, bottom], title,
// x, y}, x and y being {scale, from, to, unit, label} or null where an axis has names instead of numbers.

const make = (tag, attributes = {}, ...content) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...content);
  return made;
};
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// numbers as the axes write them
const digits = (value) => Number(value.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 });
const UNITS = {
  ms: (v) => (Math.abs(v) < 1 ? digits(v * 1e3) + " µs" : Math.abs(v) < 1e3 ? digits(v) + " ms" : digits(v / 1e3) + " s"),
  share: (v) => digits(v * 100) + " %",
  count: (v) => (Math.abs(v) < 100 ? digits(v) : Math.round(v).toLocaleString("en-US")),
  plain: digits,
};
const said = (axis, value) => (axis ? (UNITS[axis.unit] || digits)(value) : "");
const valueAt = (axis, share) =>
  axis.scale === "log" ? axis.from * (axis.to / axis.from) ** share : axis.from + (axis.to - axis.from) * share;

// what is drawn, as points and bars with values
const colourOf = (element, property) => (element.style.getPropertyValue(property).match(/var\(--(\w+)\)/) || [])[1];
const NO_SERIES = new Set([undefined, "rule", "muted", "ink", "surface"]);
const vertices = (path) => [...path.getAttribute("d").matchAll(/[ML] (-?[\d.]+) (-?[\d.]+)/g)].map((m) => [+m[1], +m[2]]);

function panels(svg) {
  const groups = all("g.axes", svg);
  return JSON.parse(svg.dataset.axes).map((axes, i) => ({ ...axes, svg, ...series(groups[i], axes) }));
}

function series(group, { box: [left, top, right, bottom] }) {
  const lines = [];
  const bars = [];
  const dots = {};
  for (const path of all("path[clip-path]", group)) {
    const points = vertices(path);
    const [line, fill] = [colourOf(path, "stroke"), colourOf(path, "fill")];
    const across = points.length === 2 && (points[0][0] === points[1][0] || points[1][0] - points[0][0] >= right - left - 1);
    if (!fill && !NO_SERIES.has(line) && points.length > 1 && !across) lines.push({ colour: line, points, line: true });
    if (!NO_SERIES.has(fill) && (points.length === 4 || points.length === 5)) {
      const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
      bars.push({ colour: fill, box: [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)], foot: bottom, path });
    }
  }
  for (const mark of all("use", group)) {
    const [x, y, colour] = [+mark.getAttribute("x"), +mark.getAttribute("y"), colourOf(mark, "fill") || colourOf(mark, "stroke")];
    const inside = x >= left - 1 && x <= right + 1 && y >= top - 1 && y <= bottom + 1;
    const alone = !lines.some((line) => line.colour === colour); // other markers sit on their line
    if (inside && alone && mark.closest("[clip-path]") && !NO_SERIES.has(colour)) (dots[colour] ||= []).push([x, y]);
  }
  return { bars, lines: [...lines, ...Object.entries(dots).map(([colour, points]) => ({ colour, points, line: false }))] };
}

function nameOf(panel, colour) {
  const meaning = all(".legend li", panel.svg.closest("figure")).find((li) => li.dataset.colour === colour);
  if (meaning) return meaning.textContent.trim();
  const labels = all("text", panel.svg).filter((text) => colourOf(text, "fill") === colour && !/^[\d.,\s%]+$/.test(text.textContent));
  return labels.length === 1 ? labels[0].textContent.trim() : panel.title || panel.y?.label || "";
}

const inValues = ({ box: [left, top, right, bottom], x, y }, [px, py]) => [
  x && valueAt(x, (px - left) / (right - left)),
  y && valueAt(y, (bottom - py) / (bottom - top)),
];

// values on hover, and by keyboard
const tip = make("div", { class: "tip", role: "status", "aria-live": "polite", hidden: "" });
let cursor = null;

function hideTip() {
  tip.hidden = true;
  cursor?.remove();
  faded.splice(0).forEach(([path, before]) => (path.style.opacity = before));
}

// which requests ran beside one: of bars in rows, those that overlap the row's in time; amber is waiting
const faded = [];
const besides = (panel) => /^(gantt|beside)/.test(panel.svg.closest("figure").id);
const rowOf = (bar) => Math.round(bar.box[1]);

function runBeside(panel, bar) {
  const ran = panel.bars.filter((one) => one.colour !== "amber");
  const own = ran.filter((one) => rowOf(one) === rowOf(bar));
  if (!own.length) return 0;
  const [from, to] = [Math.min(...own.map((one) => one.box[0])), Math.max(...own.map((one) => one.box[2]))];
  const rows = new Set(ran.filter((one) => one.box[0] < to && one.box[2] > from).map(rowOf));
  for (const { path } of panel.bars.filter((one) => !rows.has(rowOf(one)))) {
    faded.push([path, path.style.opacity]);
    path.style.opacity = 0.2;
  }
  return rows.size - 1;
}

function nearest(points, x) {
  return points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best));
}

function rowsAt(panel, x, y) {
  const bar = panel.bars.find(({ box: b }) => x >= b[0] && x <= b[2] && y >= b[1] && y <= b[3]);
  if (bar) {
    const [from, top] = inValues(panel, [bar.box[0], bar.box[1]]);
    const [to] = inValues(panel, [bar.box[2], bar.box[3]]);
    const upright = panel.y && Math.abs(bar.box[3] - bar.foot) < 1;
    const text = upright ? said(panel.y, top) : `${said(panel.x, from)} to ${said(panel.x, to)}`;
    const rows = [[bar.colour, nameOf(panel, bar.colour), text]];
    if (besides(panel)) rows.push(["muted", "ran beside", digits(runBeside(panel, bar))]);
    return { at: null, head: "", rows };
  }
  const shown = panel.lines.filter((line) => !panel.svg.closest("figure").classList.contains("no-" + line.colour));
  const close = shown.map((line) => ({ line, p: nearest(line.points, x) })).filter(({ line, p }) => line.line || Math.hypot(p[0] - x, p[1] - y) < 14);
  if (!close.length) return null;
  const lead = close.reduce((best, one) => (Math.abs(one.p[0] - x) < Math.abs(best.p[0] - x) ? one : best)).p[0];
  const rows = close.map(({ line, p }) => [line.colour, nameOf(panel, line.colour), said(panel.y, inValues(panel, p)[1])]);
  const head = panel.x ? `${said(panel.x, inValues(panel, [lead, 0])[0])} ${panel.x.label}`.trim() : "";
  return { at: lead, head, rows };
}

function showTip(panel, x, y) {
  hideTip();
  const found = rowsAt(panel, x, y);
  if (!found) return;
  tip.replaceChildren(make("b", {}, found.head));
  for (const [colour, name, value] of found.rows)
    tip.append(make("div", {}, make("i", { style: `background: var(--${colour})` }), `${name} `, make("b", {}, value)));
  tip.hidden = false;
  const [left, top, right, bottom] = panel.box;
  cursor?.remove();
  if (found.at !== null) {
    cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [k, v] of Object.entries({ x1: found.at, x2: found.at, y1: top, y2: bottom, class: "cursor" })) cursor.setAttribute(k, v);
    panel.svg.append(cursor);
  }
  const place = new DOMPoint(Math.min(Math.max(x, left), right), top).matrixTransform(panel.svg.getScreenCTM());
  const width = tip.offsetWidth;
  const room = place.x + 14 + width > innerWidth ? place.x - width - 14 : place.x + 14;
  tip.style.left = `${Math.max(room, 4) + scrollX}px`;
  tip.style.top = `${place.y + scrollY}px`;
}

function withHand(svg) {
  const read = () => panels(svg).filter((panel) => panel.lines.length || panel.bars.length);
  let found = read();
  svg.addEventListener("zoom", () => (found = read()));
  const inPixels = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  svg.addEventListener("pointermove", (event) => {
    const { x, y } = inPixels(event);
    const panel = found.find(({ box: b }) => x >= b[0] && x <= b[2] && y >= b[1] - 6 && y <= b[3] + 6);
    if (panel) showTip(panel, x, y);
    else hideTip();
  });
  svg.addEventListener("pointerleave", hideTip);
  const walk = () => found.filter((panel) => panel.lines.length);
  if (!walk().length) return;
  const frame = svg.parentElement;
  let [which, at] = [0, 0];
  frame.tabIndex = 0;
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-label", `${svg.querySelector("title").textContent}: arrow keys read values`);
  frame.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    const factors = { "+": 0.5, "-": 2 };
    const walked = walk();
    if (event.key === "ArrowDown" || event.key === "ArrowUp") which = (which + (event.key === "ArrowDown" ? 1 : walked.length - 1)) % walked.length;
    else if (event.key === "Escape") return hideTip();
    else if (!(event.key in steps) && !(event.key in factors)) return;
    event.preventDefault();
    const [left, , right] = walked[which].box;
    const { points } = walked[which].lines[0];
    const inside = ([x]) => x >= left - 1 && x <= right + 1;
    at = Math.min(Math.max(at + (steps[event.key] || 0), 0), points.length - 1);
    if (!inside(points[at])) at = points.findIndex(inside);
    if (at < 0) return hideTip();
    if (event.key in factors) zoomAround(walked[which], points[at][0], factors[event.key]);
    else showTip(walked[which], ...points[at]);
  });
  frame.addEventListener("blur", hideTip);
}

// series on and off
function withSwitches(figure) {
  for (const item of all(".legend li", figure)) {
    const colour = (item.querySelector("i").getAttribute("style").match(/--(\w+)/) || [])[1];
    item.dataset.colour = colour;
    const button = make("button", { type: "button", "aria-pressed": "true" }, ...item.childNodes);
    item.append(button);
    button.addEventListener("click", () => {
      const hidden = figure.classList.toggle("no-" + colour);
      button.setAttribute("aria-pressed", String(!hidden));
      for (const drawn of all(".drawing [style]", figure))
        if ([colourOf(drawn, "stroke"), colourOf(drawn, "fill")].includes(colour)) drawn.style.visibility = hidden ? "hidden" : "";
    });
  }
}

// figures as files
const COMPUTED = /var\(--(\w+)\)/g;

function asFile(figure) {
  const svg = all("svg", figure).find((one) => one.getBoundingClientRect().width) || figure.querySelector("svg");
  const style = getComputedStyle(document.documentElement);
  const { width, height } = svg.viewBox.baseVal;
  const text = new XMLSerializer().serializeToString(svg).replace(COMPUTED, (_, name) => style.getPropertyValue("--" + name).trim());
  const ground = `<rect width="100%" height="100%" fill="${style.getPropertyValue("--surface").trim()}"/>`;
  const sized = text.replace(/^<svg/, `<svg width="${width}" height="${height}" font-family="system-ui, sans-serif"`);
  return { svg, width, height, text: sized.replace(/^<svg[^>]*>/, (head) => head + ground) };
}

function asCsv(svg) {
  const cell = (value) => (typeof value === "number" ? String(Number(value.toPrecision(6))) : `"${String(value ?? "").replaceAll('"', '""')}"`);
  const rows = [["panel", "series", "x", "y", "x_end"]];
  for (const panel of panels(svg)) {
    for (const line of panel.lines) for (const p of line.points) rows.push([panel.title, nameOf(panel, line.colour), ...inValues(panel, p)]);
    for (const { colour, box: b } of panel.bars) rows.push([panel.title, nameOf(panel, colour), ...inValues(panel, b), inValues(panel, [b[2], b[1]])[0]]);
  }
  return rows.map((row) => row.map(cell).join(",") + "\n").join("");
}

function save(name, content, type) {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const FILES = {
  SVG: (name, file) => save(`${name}.svg`, file.text, "image/svg+xml"),
  CSV: (name, file) => save(`${name}.csv`, asCsv(file.svg), "text/csv"),
  PNG: (name, file) => {
    const image = new Image(file.width * 2, file.height * 2);
    image.onload = () => {
      const canvas = make("canvas", { width: file.width * 2, height: file.height * 2 });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(`${name}.png`, blob, "image/png"));
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(file.text);
  },
};

function withFiles(figure) {
  const menu = make("div", { class: "files" });
  for (const [kind, write] of Object.entries(FILES)) {
    const button = make("button", { type: "button", "aria-label": `Save the figure as ${kind}` }, kind);
    button.addEventListener("click", () => write(figure.id, asFile(figure)));
    menu.append(button);
  }
  figure.append(menu);
}

// tables
const FACTORS = { "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, k: 1e3, M: 1e6, G: 1e9, B: 1e9, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3 };

function sortKey(cell) {
  const text = cell.textContent.trim().replaceAll(",", "").replace("−", "-");
  const found = text.match(/^[^\d-]{0,2}(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([^\s\d]*)/);
  return found ? Number(found[1]) * (FACTORS[found[2]] || 1) : text.toLowerCase();
}

function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a < b ? -1 : a > b ? 1 : 0;
}

function withOrder(table) {
  const body = table.tBodies[0];
  const first = [...body.rows];
  all("thead th", table).forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")] || "ascending";
      all("thead th", table).forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", next);
      const sign = next === "descending" ? -1 : 1;
      const order = next === "none" ? first : [...first].sort((a, b) => sign * compared(sortKey(a.cells[column]), sortKey(b.cells[column])));
      body.append(...order);
    });
  });
  if (first.length < 12) return;
  const words = make("input", { type: "search", class: "filter", placeholder: "Filter rows", "aria-label": "Filter rows" });
  words.addEventListener("input", () => {
    const wanted = words.value.toLowerCase().split(/\s+/);
    for (const row of first) row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
  });
  table.closest(".scroll").before(words);
}

// commands and files to copy
function withCopy(text) {
  const button = make("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", () =>
    navigator.clipboard.writeText(text.textContent).then(
      () => (button.textContent = "Copied"),
      () => getSelection().selectAllChildren(text), // refused: selected, to copy by hand
    ),
  );
  text.before(button);
}

// links to sections
function withLinks() {
  const heads = all("main section > h2");
  if (heads.length < 3) return;
  const links = heads.map((head) => {
    const section = head.parentElement;
    section.id ||= head.textContent.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-");
    return make("a", { href: "#" + section.id }, head.textContent.trim());
  });
  const bar = make("nav", { class: "sections", "aria-label": "Sections" }, ...links);
  document.querySelector("main").before(bar);
  document.documentElement.style.setProperty("--bar", getComputedStyle(bar).position === "sticky" ? `${bar.offsetHeight}px` : "0px");
}

// a page, or a part of one that was put in later
function enliven(root) {
  hideTip();
  all("figure.card", root).forEach(withSwitches);
  all("svg[data-axes]", root).forEach(withHand);
  all("figure.card", root).forEach(withFiles);
  if (navigator.clipboard) all(".command pre, details pre", root).forEach(withCopy);
  all("table", root).filter((table) => table.tHead && table.tBodies[0].rows.length > 2).forEach(withOrder);
  withZoom(root);
}

document.body.append(tip);
