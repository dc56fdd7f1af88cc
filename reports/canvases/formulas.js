// What each canvas computes from the values of its controls: tiles, a chart and perhaps a table.

const DATA = JSON.parse(document.getElementById("canvases-data").textContent);
const range = (n) => Array.from({ length: n }, (_, i) => i);
const spread = (from, to, n = 97) => range(n).map((i) => from * (to / from) ** (i / (n - 1)));
const plane = ([constant, a, b], x, y) => constant + a * x + b * y;

// numbers in words
const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];
function scaled(value, base, unit) {
  let power = 0;
  while (Math.abs(value) >= base && power < PREFIXES.length - 1) [value, power] = [value / base, power + 1];
  const prefix = base === 1024 && power ? PREFIXES[power].toUpperCase() + "i" : PREFIXES[power];
  return `${digits(value)} ${prefix}${unit}`;
}
const bytes = (value) => scaled(value, 1024, "B");
const tile = (name, value, text = digits(value), unit = "") => ({ name, value, text, unit });

// what each canvas computes
const CANVASES = {
  kv(v) {
    const perToken = 2 * v.layers * v.kv_heads * v.head_dim * (v.kv_dtype === "fp8" ? 1 : 2);
    const gpu = DATA.gpus[v.gpu];
    const room = Math.max(0.9 * gpu.memory_bytes * v.gpus - DATA.models[v.model].weight_bytes, 0);
    const sequence = perToken * v.tokens;
    const points = spread(128, 131072).map((n) => [n, perToken * n * v.sequences]);
    const lines = [{ name: `KV of ${digits(v.sequences)} sequences`, colour: "blue", points }];
    if (room) lines.push({ name: "memory for KV", colour: "rose", points: [[128, room], [131072, room]] });
    return {
      tiles: [
        tile("one token", perToken, bytes(perToken)),
        tile("one sequence", sequence, bytes(sequence)),
        tile("all sequences", sequence * v.sequences, bytes(sequence * v.sequences)),
        tile("sequences that fit", Math.floor(room / sequence)),
      ],
      chart: { title: "KV cache by sequence length", x: log("tokens per sequence"), y: logBytes, lines, marks: [[v.tokens, sequence * v.sequences]] },
    };
  },

  speculation(v) {
    const yielded = (k) => (v.alpha === 1 ? k + 1 : (1 - v.alpha ** (k + 1)) / (1 - v.alpha));
    const speedup = (k) => yielded(k) / (1 + k * v.c);
    const best = range(17).reduce((a, b) => (speedup(b) > speedup(a) ? b : a));
    return {
      tiles: [
        tile("tokens per step", yielded(v.k)),
        tile("speedup", speedup(v.k), `${digits(speedup(v.k))} ×`),
        tile("best k up to 16", best),
        tile("speedup at the best k", speedup(best), `${digits(speedup(best))} ×`),
      ],
      chart: {
        title: "Speedup by draft length", x: linear("draft tokens k"), y: linear("times no drafts"),
        lines: [
          { name: "speedup", colour: "blue", points: range(17).map((k) => [k, speedup(k)]) },
          { name: "if drafts were free", colour: "slate", points: range(17).map((k) => [k, yielded(k)]) },
        ],
        marks: [[v.k, speedup(v.k)]],
      },
    };
  },

  roofline(v) {
    const [model, gpu] = [DATA.models[v.model], DATA.gpus[v.gpu]];
    const work = {
      decode: ["flops", "bytes"].map((what) => plane(model.decode[what], v.sequences, v.sequences * v.context)),
      prefill: ["flops", "bytes"].map((what) => plane(model.prefill[what], v.prompt, v.prompt ** 2)),
    };
    const seconds = ([flops, moved]) => Math.max(flops / gpu.flops, moved / gpu.bandwidth);
    const point = (one) => [one[0] / one[1], one[0] / seconds(one)];
    const bound = (one) => (one[0] / gpu.flops > one[1] / gpu.bandwidth ? "compute" : "memory");
    const ms = (one) => UNITS.ms(seconds(one) * 1e3);
    const ridge = gpu.flops / gpu.bandwidth;
    return {
      tiles: [
        tile("decode step", seconds(work.decode), ms(work.decode), bound(work.decode)),
        tile("decoded tokens/s", v.sequences / seconds(work.decode)),
        tile("prefill step", seconds(work.prefill), ms(work.prefill), bound(work.prefill)),
        tile("ridge, FLOP per byte", ridge),
      ],
      chart: {
        title: "The roofline", x: log("FLOP per byte"), y: log("FLOP/s", (value) => scaled(value, 1000, "")),
        lines: [
          { name: "roof", colour: "slate", points: [[0.1, 0.1 * gpu.bandwidth], [ridge, gpu.flops], [1e5, gpu.flops]] },
          { name: "decode", colour: "blue", points: [] },
          { name: "prefill", colour: "amber", points: [] },
        ],
        marks: [[...point(work.decode), "blue"], [...point(work.prefill), "amber"]],
      },
    };
  },

  attention(v) {
    const scores = (n) => 2 * v.heads * n * n;
    const kept = (n) => 8 * v.heads * n * v.head_dim;
    const lines = [
      { name: "scores written out", colour: "rose", points: spread(64, 1048576).map((n) => [n, scores(n)]) },
      { name: "queries, keys, values, outputs", colour: "blue", points: spread(64, 1048576).map((n) => [n, kept(n)]) },
      { name: `memory of one ${v.gpu}`, colour: "slate", points: [[64, DATA.gpus[v.gpu].memory_bytes], [1048576, DATA.gpus[v.gpu].memory_bytes]] },
    ];
    return {
      tiles: [
        tile("scores of one layer", scores(v.tokens), bytes(scores(v.tokens))),
        tile("with FlashAttention", kept(v.tokens), bytes(kept(v.tokens))),
        tile("less memory", 1 + scores(v.tokens) / kept(v.tokens), `${digits(1 + scores(v.tokens) / kept(v.tokens))} ×`),
        tile("FLOPs of one layer", 4 * v.heads * v.tokens ** 2 * v.head_dim, scaled(4 * v.heads * v.tokens ** 2 * v.head_dim, 1000, "FLOP")),
      ],
      chart: { title: "Memory of one layer's attention", x: log("tokens"), y: logBytes, lines, marks: [[v.tokens, scores(v.tokens), "rose"], [v.tokens, kept(v.tokens)]] },
    };
  },

  quantization(v) {
    const weights = v.weights.split(",").map((text) => Number(text.trim() || NaN)).slice(0, 256);
    if (weights.some((w) => !Number.isFinite(w))) return { wrong: "Weights: numbers separated by commas, such as 0.12, -0.5" };
    const symmetric = v.scheme === "symmetric";
    const rows = range(Math.ceil(weights.length / v.group)).flatMap((i) => rounded(weights.slice(i * v.group, (i + 1) * v.group), v.bits, symmetric));
    const errors = rows.map((row) => row.back - row.w);
    const overhead = (16 + (symmetric ? 0 : v.bits)) / Math.min(v.group, weights.length);
    return {
      tiles: [
        tile("largest error", Math.max(...errors.map(Math.abs))),
        tile("RMS error", Math.sqrt(errors.reduce((sum, e) => sum + e * e, 0) / errors.length)),
        tile("scale of the first group", rows[0].scale),
        tile("bits per weight", v.bits + overhead),
      ],
      chart: {
        title: "Weights before and after", x: linear("weight number"), y: linear("value"),
        lines: [
          { name: "before", colour: "slate", points: rows.map((row, i) => [i + 1, row.w]) },
          { name: "after", colour: "blue", points: rows.map((row, i) => [i + 1, row.back]) },
        ],
        marks: [],
      },
      table: { head: ["weight", "scale", "q", "back", "error"], rows: rows.map((row) => [row.w, row.scale, row.q, row.back, row.back - row.w].map(digits)) },
    };
  },
};

// halves go to the even neighbor, as in Python and torch
function halfEven(x) {
  const floor = Math.floor(x);
  return x - floor === 0.5 ? floor + (floor & 1 ? 1 : 0) : Math.round(x);
}

function rounded(weights, bits, symmetric) {
  const [low, high] = [Math.min(0, ...weights), Math.max(0, ...weights)];
  const most = symmetric ? 2 ** (bits - 1) - 1 : 2 ** bits - 1;
  const scale = (symmetric ? Math.max(-low, high) : high - low) / most || 1;
  const zero = symmetric ? 0 : halfEven(-low / scale);
  const clamp = (q) => Math.min(Math.max(q, symmetric ? -most : 0), most);
  return weights.map((w) => {
    const q = clamp(halfEven(w / scale) + zero);
    return { w, scale, q, back: (q - zero) * scale };
  });
}
