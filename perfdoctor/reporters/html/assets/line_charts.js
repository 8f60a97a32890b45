// The roofline and the series of steps: uPlot has the axes, the scales and the zoom; points and roofs are drawn here.

const PLOT_HEIGHT = 360;

/** A uPlot in its place, made anew for each theme; `makeOptions(palette)` gives what differs between charts. */
class Plot {
  constructor(label, data, makeOptions) {
    this.place = element("div", "plot");
    this.data = data;
    this.makeOptions = makeOptions;
    this.label = label;
    this.width = 0;
    new ResizeObserver(() => this.resize()).observe(this.place);
    DRAWINGS.push(() => this.resize());
    onTheme((palette) => {
      this.palette = palette;
      if (this.plot) this.make();
    });
  }

  resize() {
    const width = this.place.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    if (this.plot) this.plot.setSize({ width, height: PLOT_HEIGHT });
    else this.make();
  }

  make() {
    this.plot?.destroy();
    const options = { width: this.width, height: PLOT_HEIGHT, legend: { show: false }, ...this.makeOptions(this.palette) };
    this.plot = new uPlot(options, this.data, this.place);
    const over = this.plot.over;
    over.tabIndex = 0;
    over.setAttribute("role", "application");
    over.setAttribute("aria-label", this.label);
    over.addEventListener("mouseleave", hideTip);
    over.addEventListener("blur", hideTip);
    over.addEventListener("mousemove", (event) => {
      const box = over.getBoundingClientRect();
      this.point(this.nearest(event.clientX - box.left, event.clientY - box.top), false);
    });
    over.addEventListener("keydown", (event) => {
      if (this.onKey(event.key)) event.preventDefault();
    });
  }

  /** Say what a point is, beside it; `isKey` where it was reached by keys. */
  point(index, isKey) {
    this.chosen = index;
    if (index < 0) {
      hideTip();
      return;
    }
    const box = this.plot.over.getBoundingClientRect(), [x, y] = this.placeOf(index);
    if (isKey) this.plot.setCursor({ left: x, top: y });
    showTip(box.left + x, box.top + y, this.describe(index));
  }

  onKey(key) {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[key];
    if (by) this.point(Math.min(Math.max((this.chosen ?? -1) + by, 0), this.count - 1), true);
    else if (key === "Escape") {
      this.plot.setData(this.data);
      this.point(-1, true);
    } else return false;
    return true;
  }
}

function axisStyle(palette, more) {
  return {
    stroke: palette.colour("quiet"), font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
    grid: { stroke: palette.colour("line"), width: 1 }, ticks: { stroke: palette.colour("line"), width: 1 }, ...more,
  };
}

// --- roofline ---------------------------------------------------------------------------------------------------------

const TENSOR_CORE_TEXTS = { yes: "on Tensor Cores", no: "not on Tensor Cores", unknown: "Tensor Cores: not known", na: "" };

class RooflinePlot extends Plot {
  constructor(data) {
    const points = data.points.filter((each) => each.flops > 0 && each.bytes > 0 && each.time_ns > 0)
      .map((each) => ({ ...each, x: each.flops / each.bytes, y: each.flops / (each.time_ns / 1e9) })).sort((a, b) => a.x - b.x);
    const xs = points.map((each) => each.x), ys = points.map((each) => each.y);
    super(`Roofline of ${formatCount(points.length, "kernel")}`, [xs, ys], (palette) => this.options(palette));
    this.points = points;
    this.count = points.length;
    this.roofs = data.roofs;
    this.longest = points.reduce((most, each) => Math.max(most, each.time_ns), 1);
    this.total = points.reduce((sum, each) => sum + each.time_ns, 0);
    this.byTime = [...points.keys()].sort((a, b) => points[b].time_ns - points[a].time_ns);
  }

  /** The limits of both axes, with room for the ridges of the roofs. */
  limits() {
    const flops = this.roofs.filter((roof) => roof.kind === "flops").map((roof) => roof.per_s);
    const rates = this.roofs.filter((roof) => roof.kind === "bytes").map((roof) => roof.per_s);
    const ridges = flops.flatMap((peak) => rates.map((rate) => peak / rate));
    const [xs, ys] = this.data;
    const spread = (values) => [10 ** Math.floor(Math.log10(Math.min(...values) / 1.5)), 10 ** Math.ceil(Math.log10(Math.max(...values) * 1.5))];
    return [spread([...xs, ...ridges]), spread([...ys, ...flops])];
  }

  options(palette) {
    const [x, y] = this.limits(), filter = (_, at) => at.map((v) => (isPowerOfTen(v) ? v : null));
    const line = { stroke: palette.colour("line"), width: 1, filter }, ofPowers = { grid: line, ticks: line };
    return {
      scales: {
        x: { time: false, distr: 3, range: (_, low, high) => (this.isZoomed(low, high) ? [low, high] : x) },
        y: { distr: 3, range: () => y },
      },
      axes: [
        axisStyle(palette, { label: "FLOP per byte", size: 46, labelSize: 20, values: (_, at) => at.map((v) => (isPowerOfTen(v) ? `${+v.toPrecision(1)}` : "")), ...ofPowers }),
        axisStyle(palette, { label: "FLOP/s", size: 70, labelSize: 20, values: (_, at) => at.map((v) => (isPowerOfTen(v) ? formatQuantity(v, "").trim().replace(/\.0+/, "") : "")), ...ofPowers }),
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      cursor: { drag: { x: true, y: false }, points: { show: false }, y: false, x: false },
      hooks: { draw: [(plot) => this.drawMarks(plot, palette)] },
    };
  }

  isZoomed(low, high) {
    const [xs] = this.data;
    return low > xs[0] || high < xs[xs.length - 1];
  }

  drawMarks(plot, palette) {
    const pen = plot.ctx, scale = devicePixelRatio || 1, { left, top, width, height } = plot.bbox;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    this.drawRoofs(plot, pen, scale, palette);
    for (const i of this.byTime) {
      const each = this.points[i];
      this.drawMark(pen, plot.valToPos(each.x, "x", true), plot.valToPos(each.y, "y", true), this.radius(each) * scale, each, palette);
    }
    pen.restore();
  }

  radius(each) {
    return 3 + 11 * Math.sqrt(each.time_ns / this.longest);
  }

  /** A circle; a square for what does not run on Tensor Cores, a rhombus where that is not known. */
  drawMark(pen, x, y, r, each, palette) {
    pen.beginPath();
    if (each.tensor_core === "no") pen.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
    else if (each.tensor_core === "unknown") [[0, -r], [r, 0], [0, r], [-r, 0]].forEach(([dx, dy], i) => (i ? pen.lineTo(x + dx, y + dy) : pen.moveTo(x + dx, y + dy)));
    else pen.arc(x, y, r, 0, 7);
    pen.closePath();
    pen.globalAlpha = 0.75;
    pen.fillStyle = palette.fill(each.category);
    pen.fill();
    pen.globalAlpha = 1;
    pen.strokeStyle = palette.colour("paper");
    pen.lineWidth = 1;
    pen.stroke();
  }

  drawRoofs(plot, pen, scale, palette) {
    const flops = this.roofs.filter((roof) => roof.kind === "flops"), rates = this.roofs.filter((roof) => roof.kind === "bytes");
    const highest = Math.max(...flops.map((roof) => roof.per_s)), fastest = Math.max(...rates.map((roof) => roof.per_s));
    const [low, high] = [plot.scales.x.min, plot.scales.x.max];
    const line = (x1, y1, x2, y2) => {
      pen.beginPath();
      pen.moveTo(plot.valToPos(x1, "x", true), plot.valToPos(y1, "y", true));
      pen.lineTo(plot.valToPos(x2, "x", true), plot.valToPos(y2, "y", true));
      pen.stroke();
    };
    pen.strokeStyle = palette.colour("ink");
    pen.fillStyle = palette.colour("ink");
    pen.lineWidth = 1.5 * scale;
    pen.font = `${12 * scale}px system-ui, sans-serif`;
    pen.textBaseline = "bottom";
    let nearest = -Infinity, x = 0, lastWidth = 0;
    for (const roof of flops.sort((a, b) => b.per_s - a.per_s)) {
      const from = Number.isFinite(fastest) ? Math.max(roof.per_s / fastest, low) : low;
      line(from, roof.per_s, high, roof.per_s);
      // Names of roofs that lie close stand beside each other.
      const text = `${roof.name}: ${formatQuantity(roof.per_s, "FLOP/s")}`, y = plot.valToPos(roof.per_s, "y", true);
      x = y - nearest < 15 * scale ? x - lastWidth - 14 * scale : plot.bbox.left + plot.bbox.width - 4 * scale;
      if (y - nearest >= 15 * scale) nearest = y;
      lastWidth = pen.measureText(text).width;
      pen.textAlign = "right";
      pen.fillText(text, x, nearest - 2 * scale);
    }
    for (const roof of rates) {
      const to = Number.isFinite(highest) ? Math.min(highest / roof.per_s, high) : high;
      line(low, low * roof.per_s, to, to * roof.per_s);
      const middle = Math.sqrt(Math.max(low, plot.scales.y.min / roof.per_s) * to);
      const [x1, y1] = [plot.valToPos(middle, "x", true), plot.valToPos(middle * roof.per_s, "y", true)];
      const [x2, y2] = [plot.valToPos(middle * 1.1, "x", true), plot.valToPos(middle * 1.1 * roof.per_s, "y", true)];
      pen.save();
      pen.translate(x1, y1);
      pen.rotate(Math.atan2(y2 - y1, x2 - x1));
      pen.textAlign = "center";
      pen.fillText(`${roof.name}: ${formatQuantity(roof.per_s, "B/s")}`, 0, -3 * scale);
      pen.restore();
    }
    pen.textAlign = "left";
  }

  placeOf(index) {
    const each = this.points[index];
    return [this.plot.valToPos(each.x, "x"), this.plot.valToPos(each.y, "y")];
  }

  nearest(x, y) {
    let best = -1, nearest = Infinity;
    this.points.forEach((each, i) => {
      const [px, py] = this.placeOf(i), away = Math.hypot(px - x, py - y) - this.radius(each);
      if (away < 6 && away < nearest) [best, nearest] = [i, away];
    });
    return best;
  }

  /** The keys walk from the kernel with most time on. */
  point(index, isKey) {
    if (!isKey || index < 0) {
      super.point(index, isKey);
      return;
    }
    super.point(this.byTime[index], true);
    this.chosen = index;
  }

  /** The highest rate that the roofs allow at an intensity; null where they are not known. */
  roofAt(each) {
    const flops = this.roofs.filter((roof) => roof.kind === "flops").map((roof) => roof.per_s);
    const rates = this.roofs.filter((roof) => roof.kind === "bytes").map((roof) => roof.per_s);
    return flops.length && rates.length ? Math.min(Math.max(...flops), each.x * Math.max(...rates)) : null;
  }

  describe(index) {
    const each = this.points[index], roof = this.roofAt(each);
    return [
      each.name,
      `${formatQuantity(each.y, "FLOP/s")} at ${+each.x.toPrecision(3)} FLOP per byte${roof ? `, ${formatShare(each.y / roof)} of the highest roof` : ""}`,
      `${formatDuration(each.time_ns)} recorded (${formatShare(each.time_ns / this.total)} of those shown), ${each.category}`,
      TENSOR_CORE_TEXTS[each.tensor_core] ?? "",
    ];
  }
}

function isPowerOfTen(value) {
  const power = Math.log10(value);
  return Math.abs(power - Math.round(power)) < 1e-9;
}

function makeRoofline(data) {
  const chart = new RooflinePlot(data);
  if (!chart.count) return [element("p", "", "No kernel has known FLOPs and bytes.")];
  const left = data.points.length - chart.count;
  const categories = [...new Set(chart.points.map((each) => each.category))];
  const note = element("p", "quiet help",
    `The larger a mark, the more time its kernel takes. A square does not run on Tensor Cores; of a rhombus that is not known. Drag to zoom, double click for all.${
      left ? ` ${formatCount(left, "kernel does", "kernels do")} no counted arithmetic and ${left === 1 ? "has" : "have"} no place here.` : ""}`);
  const alternative = tableAlternative("The kernels as a table", ["kernel", "category", "FLOP per byte", "FLOP/s", "time recorded"], () =>
    chart.byTime.slice(0, 200).map((i) => chart.points[i]).map((each) =>
      [each.name, each.category, `${+each.x.toPrecision(3)}`, formatQuantity(each.y, "FLOP/s"), formatDuration(each.time_ns)]));
  return [chart.place, makeLegend(categories), note, alternative];
}

// --- steps ------------------------------------------------------------------------------------------------------------

class StepsPlot extends Plot {
  constructor(data) {
    const recorded = [data.recorded_ns.map((_, i) => data.first + i), data.recorded_ns];
    const joined = data.unprofiled_ns.length ? uPlot.join([recorded, [data.unprofiled_number, data.unprofiled_ns]]) : [...recorded, recorded[0].map(() => null)];
    super(`Lengths of ${formatCount(data.recorded_ns.length, "recorded step")}`, joined, (palette) => this.options(palette));
    this.count = joined[0].length;
    this.hasUnprofiled = data.unprofiled_ns.length > 0;
  }

  options(palette) {
    const few = this.count < 400;
    const highest = Math.max(...this.data.slice(1).flatMap((column) => column.filter((ns) => ns != null)));
    return {
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, (high ?? highest) * 1.08] } },
      axes: [
        axisStyle(palette, { label: "step", labelSize: 20, size: 46, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000] }),
        axisStyle(palette, { size: 74, values: (_, at) => at.map((ns) => formatDuration(ns)) }),
      ],
      series: [
        {},
        { stroke: palette.colour("red"), width: 2, points: { show: few, size: 7, fill: palette.colour("red") }, spanGaps: true },
        { stroke: palette.colour("blue"), width: 1.5, dash: [5, 4], points: { show: few, size: 5, fill: palette.colour("paper") }, spanGaps: true },
      ],
      cursor: { y: false, points: { size: 9 } },
    };
  }

  placeOf(index) {
    const ns = this.data[1][index] ?? this.data[2][index];
    return [this.plot.valToPos(this.data[0][index], "x"), this.plot.valToPos(ns, "y")];
  }

  nearest(x) {
    return this.plot.posToIdx(x);
  }

  describe(index) {
    const [number, recorded, unprofiled] = this.data.map((column) => column[index]);
    return [
      `step ${number}`,
      recorded == null ? "" : `${formatDuration(recorded)} recorded`,
      unprofiled == null ? "" : `${formatDuration(unprofiled)} without the profiler`,
    ];
  }
}

function makeSteps(data) {
  const chart = new StepsPlot(data);
  const legend = element("ul", "chart-legend");
  legend.append(element("li", "key-recorded", "recorded"));
  if (chart.hasUnprofiled) legend.append(element("li", "key-unprofiled", "without the profiler (dashed)"));
  const alternative = tableAlternative("The steps as a table", ["step", "recorded", "without the profiler"], () =>
    chart.data[0].slice(0, 1000).map((number, i) => [`${number}`, formatDuration(chart.data[1][i] ?? null), formatDuration(chart.data[2][i] ?? null)]));
  return [chart.place, legend, alternative];
}
