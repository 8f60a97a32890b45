// Memory over time: what is allocated, stacked by what it is for, what is reserved, and the peak.

const PEAK_REACH = 14;

class MemoryPlot extends Plot {
  constructor(data) {
    const at = data.time_ns === null ? decodeColumn(data.event, Uint32Array) : decodeColumn(data.time_ns, Float64Array);
    const parts = data.bytes.map((column) => decodeColumn(column, Float64Array));
    const tops = [];
    for (const part of parts) tops.push(part.map((size, i) => size + (tops.at(-1)?.[i] ?? 0)));
    const reserved = decodeColumn(data.reserved_bytes, Float64Array);
    // The highest first: each covers what lies behind it down to zero.
    const columns = [at, ...tops.toReversed(), ...(reserved ? [reserved] : [])];
    super(`Memory of ${data.device} over time`, columns, (palette) => this.options(palette));
    this.info = data;
    this.parts = parts;
    this.total = tops.at(-1);
    this.reserved = reserved;
    this.count = at.length;
  }

  options(palette) {
    const stepped = uPlot.paths.stepped({ align: 1 }),
      plain = { paths: stepped, points: { show: false } };
    const hasTimes = this.info.time_ns !== null;
    return {
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, (high ?? this.total[this.info.peak]) * 1.12] } },
      axes: [
        axisStyle(palette, {
          label: hasTimes ? "time since the first event" : "event",
          labelSize: 20,
          size: 46,
          space: 70,
          values: (_, at) => at.map((value) => (hasTimes ? formatDuration(value) : value.toLocaleString("en-US"))),
        }),
        axisStyle(palette, { size: 74, values: (_, at) => at.map((size) => (size ? formatQuantity(size, "B") : "0")) }),
      ],
      series: [
        {},
        ...this.info.categories.toReversed().map((name) => ({
          ...plain,
          fill: palette.fill(name),
          stroke: palette.fill(name), // so that what is shorter than a pixel is seen
          width: 1,
        })),
        ...(this.reserved ? [{ ...plain, stroke: palette.colour("ink"), width: 1.5, dash: [5, 4] }] : []),
      ],
      cursor: { y: false, points: { show: false } },
      hooks: { draw: [(plot) => this.drawPeak(plot, palette)] },
    };
  }

  make() {
    super.make();
    const over = this.plot.over;
    over.addEventListener("click", (event) => {
      const box = over.getBoundingClientRect();
      if (this.isAtPeak(event.clientX - box.left, event.clientY - box.top)) this.followPeak();
    });
    over.addEventListener("mousemove", (event) => {
      const box = over.getBoundingClientRect();
      const leads = this.info.finding !== null && this.isAtPeak(event.clientX - box.left, event.clientY - box.top);
      over.style.cursor = leads ? "pointer" : "";
    });
  }

  isAtPeak(x, y) {
    const [peakX, peakY] = this.placeOf(this.info.peak);
    return Math.hypot(x - peakX, y - peakY) < PEAK_REACH;
  }

  /** Go to the finding on the peak. */
  followPeak() {
    if (this.info.finding !== null) location.hash = `finding-${this.info.finding}`;
  }

  onKey(key) {
    if (key !== "Enter" || this.chosen !== this.info.peak) return super.onKey(key);
    this.followPeak();
    return true;
  }

  drawPeak(plot, palette) {
    const pen = plot.ctx,
      scale = devicePixelRatio || 1,
      { left, top, width, height } = plot.bbox;
    const { peak, line } = this.info;
    const x = plot.valToPos(this.data[0][peak], "x", true),
      y = plot.valToPos(this.total[peak], "y", true);
    if (x < left || x > left + width) return; // zoomed away
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    pen.beginPath();
    pen.arc(x, y, 5 * scale, 0, 7);
    pen.fillStyle = palette.colour("paper");
    pen.fill();
    pen.strokeStyle = palette.colour("ink");
    pen.lineWidth = 2 * scale;
    pen.setLineDash([]);
    pen.stroke();
    const text = `${formatQuantity(this.total[peak], "B")}${line === null ? "" : `, ${line}`}`;
    pen.font = `600 ${12 * scale}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    const wide = pen.measureText(text).width,
      gap = 10 * scale;
    const from = Math.max(x + gap + wide > left + width ? x - gap - wide : x + gap, left);
    pen.fillRect(from - 3 * scale, y - 9 * scale, wide + 6 * scale, 18 * scale);
    pen.fillStyle = palette.colour("ink");
    pen.textAlign = "left";
    pen.fillText(text, from, y);
    pen.restore();
  }

  placeOf(index) {
    return [this.plot.valToPos(this.data[0][index], "x"), this.plot.valToPos(this.total[index], "y")];
  }

  nearest(x, y) {
    return this.isAtPeak(x, y) ? this.info.peak : this.plot.posToIdx(x);
  }

  whenIs(index) {
    const at = this.data[0][index];
    return this.info.time_ns === null ? `event ${at.toLocaleString("en-US")}` : formatDuration(at);
  }

  describe(index) {
    const isPeak = index === this.info.peak;
    const sizes = this.info.categories
      .map((name, i) => [name, this.parts[i][index]])
      .filter(([, size]) => size > 0)
      .sort(([, a], [, b]) => b - a);
    return [
      `${formatQuantity(this.total[index], "B")} allocated at ${this.whenIs(index)}${isPeak ? ", the peak" : ""}`,
      ...sizes.map(([name, size]) => `${formatQuantity(size, "B")} ${categoryLabel(name)}`),
      this.reserved ? `${formatQuantity(this.reserved[index], "B")} reserved` : "",
      isPeak && this.info.finding !== null ? `Click for finding ${this.info.finding}` : "",
    ];
  }
}

/** The peak, and some instants in between. */
function memoryRows(chart) {
  const step = Math.ceil(chart.count / 200);
  const shown = [chart.info.peak];
  for (let i = 0; i < chart.count; i += step) shown.push(i);
  return shown.map((i) => [
    `${chart.whenIs(i)}${i === chart.info.peak ? ", the peak" : ""}`,
    formatQuantity(chart.total[i], "B"),
    ...chart.parts.map((part) => formatQuantity(part[i], "B")),
    ...(chart.reserved ? [formatQuantity(chart.reserved[i], "B")] : []),
  ]);
}

function makeMemory(devices) {
  return devices.flatMap((data) => {
    const chart = new MemoryPlot(data);
    const text = element("p", "", `${data.text}. `);
    if (data.finding !== null) {
      const link = text.appendChild(element("a", "", `Finding ${data.finding} says what to change.`));
      link.href = `#finding-${data.finding}`;
    }
    const legend = makeLegend(data.categories);
    if (chart.reserved) legend.append(element("li", "key-reserved", "reserved (dashed)"));
    const head = ["instant", "allocated", ...data.categories.map(categoryLabel), ...(chart.reserved ? ["reserved"] : [])];
    return [text, chart.place, legend, tableAlternative(`The memory of ${data.device} as a table`, head, () => memoryRows(chart))];
  });
}
