// The colour and pattern of each category: the palette of Okabe and Ito, and hatching where one colour stands for two.

const SOLID = "",
  HATCH = "hatch",
  BACK = "hatch-back",
  DOTS = "dots",
  LINES = "lines",
  CROSS = "cross";

const CATEGORY_STYLES = {
  gemm: ["blue", SOLID],
  convolution: ["sky", SOLID],
  attention: ["green", SOLID],
  elementwise: ["orange", SOLID],
  reduction: ["yellow", SOLID],
  norm: ["red", SOLID],
  softmax: ["yellow", HATCH],
  copy: ["grey", SOLID],
  indexing: ["grey", HATCH],
  optimizer: ["red", HATCH],
  communication: ["pink", DOTS],
  random: ["orange", HATCH],
  other: ["grey", DOTS],
  memcpy: ["blue", LINES],
  memset: ["sky", LINES],
  idle_dataloader: ["red", HATCH],
  idle_sync: ["sky", BACK],
  idle_launch: ["orange", HATCH],
  idle_communication: ["pink", HATCH],
  idle_allocator: ["blue", CROSS],
  idle_unexplained: ["grey", BACK],
  loader: ["red", SOLID],
  forward: ["green", SOLID],
  backward: ["blue", SOLID],
  compute: ["green", LINES],
  sync: ["sky", BACK],
  launch: ["orange", SOLID],
  allocator: ["blue", CROSS],
  python: ["sky", SOLID],
  annotation: ["green", SOLID],
  op: ["orange", SOLID],
  call: ["pink", SOLID],
  phase: ["grey", SOLID],
  place: ["yellow", SOLID],
  function: ["sky", SOLID],
  "loading data": ["red", SOLID],
  "all of the time": ["sky", SOLID],
  "clearing gradients": ["pink", SOLID],
  "other parts of the loop": ["grey", SOLID],
  before_recording: ["grey", SOLID],
  parameters: ["blue", SOLID],
  optimizer_state: ["red", SOLID],
  gradients: ["sky", SOLID],
  collectives: ["pink", DOTS],
  inputs: ["yellow", SOLID],
  activations: ["green", SOLID],
  temporaries: ["orange", SOLID],
  unknown: ["grey", BACK],
};

const CATEGORY_LABELS = {
  memcpy: "memory copy",
  memset: "memory set",
  copy: "copy kernel or phase",
  op: "PyTorch op",
  phase: "part of the loop",
  place: "place",
  function: "function of a library",
  call: "runtime call",
  annotation: "annotation",
  python: "Python",
  idle_dataloader: "idle: DataLoader",
  idle_sync: "idle: synchronisation",
  idle_launch: "idle: launches",
  idle_communication: "idle: other ranks",
  idle_allocator: "idle: allocation",
  idle_unexplained: "idle: unexplained",
  before_recording: "from before the recording",
  optimizer_state: "optimizer state",
  collectives: "buffers of collectives",
  unknown: "of unknown purpose",
};

const SPARE_COLOURS = ["green", "blue", "orange", "pink", "sky", "red", "yellow"];

function categoryLabel(name) {
  return CATEGORY_LABELS[name] ?? name;
}

/** The fills of canvases in the theme of now: colours of the page by name, categories, and a text colour that suits. */
class Palette {
  constructor() {
    const style = getComputedStyle(document.documentElement);
    this.colours = {};
    for (const name of [
      "paper",
      "raised",
      "ink",
      "quiet",
      "line",
      "accent",
      "track",
      "blue",
      "sky",
      "green",
      "orange",
      "yellow",
      "red",
      "pink",
      "grey",
    ]) {
      this.colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
    this.fills = new Map();
  }

  colour(name) {
    return this.colours[name];
  }

  styleOf(category) {
    const known = CATEGORY_STYLES[category];
    if (known) return known;
    let sum = 0;
    for (const letter of category) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
    return [SPARE_COLOURS[sum % SPARE_COLOURS.length], SOLID];
  }

  /** What fills the items of a category: a colour, or a pattern of a canvas. */
  fill(category) {
    let fill = this.fills.get(category);
    if (fill === undefined) {
      const [name, pattern] = this.styleOf(category);
      fill = pattern ? this.pattern(this.colours[name], pattern) : this.colours[name];
      this.fills.set(category, fill);
    }
    return fill;
  }

  pattern(colour, kind) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = pen.fillStyle = "rgb(0 0 0 / 40%)";
    pen.lineWidth = 1.6;
    const strokes = {
      [HATCH]: [
        [0, 8, 8, 0],
        [-2, 2, 2, -2],
        [6, 10, 10, 6],
      ],
      [BACK]: [
        [0, 0, 8, 8],
        [-2, 6, 2, 10],
        [6, -2, 10, 2],
      ],
      [LINES]: [[0, 4, 8, 4]],
      [CROSS]: [
        [0, 4, 8, 4],
        [4, 0, 4, 8],
      ],
    };
    pen.beginPath();
    if (kind === DOTS) pen.arc(4, 4, 1.4, 0, 7);
    for (const [x1, y1, x2, y2] of strokes[kind] ?? []) {
      pen.moveTo(x1, y1);
      pen.lineTo(x2, y2);
    }
    if (kind === DOTS) pen.fill();
    else pen.stroke();
    return pen.createPattern(tile, "repeat");
  }
}

/** A legend of the categories that occur. */
function makeLegend(categories) {
  const list = element("ul", "chart-legend");
  const canvases = categories.map((category) => {
    const item = list.appendChild(element("li"));
    const box = item.appendChild(element("canvas"));
    box.width = 28;
    box.height = 20;
    item.append(` ${categoryLabel(category)}`);
    return [box, category];
  });
  onTheme((palette) => {
    for (const [box, category] of canvases) {
      const pen = box.getContext("2d");
      pen.fillStyle = palette.fill(category);
      pen.fillRect(0, 0, 28, 20);
    }
  });
  return list;
}

/** The five stops of cividis, which people with any sight read as an order from low to high. */
const CIVIDIS = [
  [0, 34, 78],
  [65, 77, 107],
  [124, 123, 120],
  [188, 175, 111],
  [254, 232, 56],
];

/** The colour of a share from 0 to 1. */
function sequentialColour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.min(Math.floor(at), CIVIDIS.length - 2);
  const mix = CIVIDIS[low].map((value, i) => Math.round(value + (at - low) * (CIVIDIS[low + 1][i] - value)));
  return `rgb(${mix.join(" ")})`;
}
