// The roofline: kernels by their work per byte and their rate, below what the device can do.

const TENSOR_CORE_TEXTS = {
  yes: "on Tensor Cores",
  no: "not on Tensor Cores",
  unknown: "Tensor Cores: not known",
  na: "",
};

class RooflinePlot extends Plot {
  constructor(data) {
    const points = data.points
      .filter((each) => each.flops > 0 && each.bytes > 0 && each.time_ns > 0)
      .map((each) => ({ ...each, x: each.flops / each.bytes, y: each.flops / (each.time_ns / 1e9) }))
      .sort((a, b) => a.x - b.x);
    const xs = points.map((each) => each.x),
      ys = points.map((each) => each.y);
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
    const spread = (values) => [
      10 ** Math.floor(Math.log10(Math.min(...values) / 1.5)),
      10 ** Math.ceil(Math.log10(Math.max(...values) * 1.5)),
    ];
    return [spread([...xs, ...ridges]), spread([...ys, ...flops])];
  }

  options(palette) {
    const [x, y] = this.limits(),
      filter = (_, at) => at.map((v) => (isPowerOfTen(v) ? v : null));
    const line = { stroke: palette.colour("line"), width: 1, filter },
      ofPowers = { grid: line, ticks: line };
    return {
      scales: {
        x: { time: false, distr: 3, range: (_, low, high) => (this.isZoomed(low, high) ? [low, high] : x) },
        y: { distr: 3, range: () => y },
      },
      axes: [
        axisStyle(palette, {
          label: "FLOP per byte",
          size: 46,
          labelSize: 20,
          values: (_, at) => at.map((v) => (isPowerOfTen(v) ? `${+v.toPrecision(1)}` : "")),
          ...ofPowers,
        }),
        axisStyle(palette, {
          label: "FLOP/s",
          size: 70,
          labelSize: 20,
          values: (_, at) => at.map((v) => (isPowerOfTen(v) ? formatQuantity(v, "").trim().replace(/\.0+/, "") : "")),
          ...ofPowers,
        }),
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
    const pen = plot.ctx,
      scale = devicePixelRatio || 1,
      { left, top, width, height } = plot.bbox;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    this.drawRoofs(plot, pen, scale, palette);
    for (const i of this.byTime) {
      const each = this.points[i];
      this.drawMark(
        pen,
        plot.valToPos(each.x, "x", true),
        plot.valToPos(each.y, "y", true),
        this.radius(each) * scale,
        each,
        palette,
      );
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
    else if (each.tensor_core === "unknown")
      [
        [0, -r],
        [r, 0],
        [0, r],
        [-r, 0],
      ].forEach(([dx, dy], i) => (i ? pen.lineTo(x + dx, y + dy) : pen.moveTo(x + dx, y + dy)));
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
    const flops = this.roofs.filter((roof) => roof.kind === "flops"),
      rates = this.roofs.filter((roof) => roof.kind === "bytes");
    const highest = Math.max(...flops.map((roof) => roof.per_s)),
      fastest = Math.max(...rates.map((roof) => roof.per_s));
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
    let nearest = -Infinity,
      x = 0,
      lastWidth = 0;
    for (const roof of flops.sort((a, b) => b.per_s - a.per_s)) {
      const from = Number.isFinite(fastest) ? Math.max(roof.per_s / fastest, low) : low;
      line(from, roof.per_s, high, roof.per_s);
      // Names of roofs that lie close stand beside each other.
      const text = `${roof.name}: ${formatQuantity(roof.per_s, "FLOP/s")}`,
        y = plot.valToPos(roof.per_s, "y", true);
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
    let best = -1,
      nearest = Infinity;
    this.points.forEach((each, i) => {
      const [px, py] = this.placeOf(i),
        away = Math.hypot(px - x, py - y) - this.radius(each);
      if (away < 6 && away < nearest) [best, nearest] = [i, away];
    });
    return best;
  }

  /** The keys walk from the kernel with the most time on. */
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
    const each = this.points[index],
      roof = this.roofAt(each);
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
  const note = element(
    "p",
    "quiet help",
    `The larger a mark, the more time its kernel takes. A square does not run on Tensor Cores; of a rhombus that is not known. Drag to zoom, double click for all.${
      left
        ? ` ${formatCount(left, "kernel does", "kernels do")} no counted arithmetic and ${left === 1 ? "has" : "have"} no place here.`
        : ""
    }`,
  );
  const alternative = tableAlternative(
    "The kernels as a table",
    ["kernel", "category", "FLOP per byte", "FLOP/s", "time recorded"],
    () =>
      chart.byTime
        .slice(0, 200)
        .map((i) => chart.points[i])
        .map((each) => [
          each.name,
          each.category,
          `${+each.x.toPrecision(3)}`,
          formatQuantity(each.y, "FLOP/s"),
          formatDuration(each.time_ns),
        ]),
  );
  return [chart.place, makeLegend(categories), note, alternative];
}
