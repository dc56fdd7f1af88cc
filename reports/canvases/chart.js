// Charts of the canvases: lines and marks on linear or logarithmic axes.

const SVG = "http://www.w3.org/2000/svg";
const log = (label, text = (value) => scaled(value, 1000, "")) => ({ label, text, scale: "log", base: 10 });
const logBytes = { label: "bytes", text: bytes, scale: "log", base: 2 };
const linear = (label) => ({ label, text: digits, scale: "linear" });
const svg = (tag, attributes = {}, ...content) => {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...content);
  return made;
};

function ends(axis, values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (axis.scale === "log") return [low / 1.2, high * 1.2];
  return [Math.min(low, 0), high > Math.min(low, 0) ? high * 1.05 : 1];
}

function ticks({ scale, base, from, to }, most) {
  const log = scale === "log";
  const [first, last] = log ? [from, to].map((value) => Math.log(value) / Math.log(base)) : [from, to];
  const raw = (last - first) / most;
  const unit = log ? 1 : 10 ** Math.floor(Math.log10(raw));
  const step = log ? Math.max(Math.ceil(raw), 1) : unit * [1, 2, 5, 10].find((times) => times * unit >= raw);
  const start = Math.ceil(first / step);
  const places = range(Math.floor(last / step) - start + 1).map((i) => (start + i) * step);
  return log ? places.map((place) => base ** place) : places;
}

function drawn(chart, name, width) {
  const [height, left, top, right, bottom] = [320, 74, 12, width - 14, 272];
  const of = (i) => [...chart.lines.flatMap((line) => line.points), ...chart.marks].map((point) => point[i]);
  const [x, y] = [chart.x, chart.y].map((axis, i) => {
    const [from, to] = ends(axis, of(i));
    return { ...axis, from, to };
  });
  const share = (axis, value) => (axis.scale === "log" ? Math.log(value / axis.from) / Math.log(axis.to / axis.from) : (value - axis.from) / (axis.to - axis.from));
  const px = (value) => (left + share(x, value) * (right - left)).toFixed(2);
  const py = (value) => (bottom - share(y, value) * (bottom - top)).toFixed(2);
  const text = (words, at) => svg("text", { style: "fill: var(--muted)", "font-size": 12, ...at }, words);
  const group = svg("g", { class: "axes" });
  for (const value of ticks(x, width < 480 ? 4 : 7)) {
    group.append(svg("path", { d: `M ${px(value)} ${top} L ${px(value)} ${bottom}`, style: "stroke: var(--rule)" }));
    group.append(text(x.text(value), { x: px(value), y: bottom + 18, "text-anchor": "middle" }));
  }
  for (const value of ticks(y, 5)) {
    group.append(svg("path", { d: `M ${left} ${py(value)} L ${right} ${py(value)}`, style: "stroke: var(--rule)" }));
    group.append(text(y.text(value), { x: left - 8, y: +py(value) + 4, "text-anchor": "end" }));
  }
  group.append(text(x.label, { x: (left + right) / 2, y: bottom + 38, "text-anchor": "middle" }));
  const clip = "url(#" + `${name}-clip)`;
  for (const { colour, points } of chart.lines.filter((line) => line.points.length)) {
    const d = points.map((point, i) => `${i ? "L" : "M"} ${px(point[0])} ${py(point[1])}`).join(" ");
    group.append(svg("path", { d, style: `stroke: var(--${colour}); fill: none; stroke-width: 2`, "clip-path": clip }));
  }
  for (const [mx, my, colour = "blue"] of chart.marks)
    group.append(svg("circle", { cx: px(mx), cy: py(my), r: 5.5, style: `fill: var(--${colour}); stroke: var(--surface); stroke-width: 1.5` }));
  const area = svg("rect", { x: left, y: top, width: right - left, height: bottom - top });
  const axes = [{ box: [left, top, right, bottom], title: chart.title, x: { ...x, unit: "plain" }, y: { ...y, unit: "plain" } }];
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": `${name}-title`, "data-axes": JSON.stringify(axes) },
    svg("title", { id: `${name}-title` }, `${chart.title}: ${y.label} by ${x.label}`),
    svg("defs", {}, svg("clipPath", { id: `${name}-clip` }, area)),
    group,
  );
}
