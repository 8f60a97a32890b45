// The steps one after another: as recorded, and without the profiler; what happened in the run is marked on them.

/** Of each kind of mark its colour, its name in the legend, and whether it is a band over its steps, or else a tick. */
const RUN_MARKS = {
  window: ["green", "recorded windows", true],
  drift: ["red", "slower from here on", true],
  evaluation: ["blue", "evaluation", false],
  checkpoint: ["orange", "checkpoint", false],
  epoch: ["pink", "an epoch begins", false],
  compilation: ["sky", "compilation", false],
  finding: ["ink", "findings, by their rule", false],
};

class StepsPlot extends Plot {
  constructor(data) {
    const recorded = [data.recorded_ns.map((_, i) => data.first + i), data.recorded_ns];
    const joined = data.unprofiled_ns.length
      ? uPlot.join([recorded, [data.unprofiled_number, data.unprofiled_ns]])
      : [...recorded, recorded[0].map(() => null)];
    super(`Lengths of ${formatCount(data.recorded_ns.length, "recorded step")}`, joined, (palette) =>
      this.options(palette),
    );
    this.count = joined[0].length;
    this.marks = data.marks;
    this.hasUnprofiled = data.unprofiled_ns.length > 0;
  }

  options(palette) {
    const few = this.count < 400;
    const highest = Math.max(...this.data.slice(1).flatMap((column) => column.filter((ns) => ns != null)));
    return {
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, (high ?? highest) * 1.08] } },
      axes: [
        axisStyle(palette, {
          label: "step",
          labelSize: 20,
          size: 46,
          incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000],
        }),
        axisStyle(palette, { size: 74, values: (_, at) => at.map((ns) => formatDuration(ns)) }),
      ],
      series: [
        {},
        {
          stroke: palette.colour("red"),
          width: 2,
          points: { show: few, size: 7, fill: palette.colour("red") },
          spanGaps: true,
        },
        {
          stroke: palette.colour("blue"),
          width: 1.5,
          dash: [5, 4],
          points: { show: few, size: 5, fill: palette.colour("paper") },
          spanGaps: true,
        },
      ],
      cursor: { y: false, points: { size: 9 } },
      hooks: { draw: [(plot) => this.drawMarks(plot, palette)] },
    };
  }

  drawMarks(plot, palette) {
    const pen = plot.ctx,
      scale = devicePixelRatio || 1,
      { left, top, width, height } = plot.bbox;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    for (const { kind, first, last, text } of this.marks) {
      const [colour, , isBand] = RUN_MARKS[kind];
      const [from, until] = [first - 0.5, last + 0.5].map((step) => plot.valToPos(step, "x", true));
      pen.fillStyle = palette.colour(colour);
      if (!isBand) {
        const at = kind === "finding" ? top + height - 10 * scale : top; // what a finding names has a tick above
        pen.fillRect(from, at, Math.max(until - from, 1.5 * scale), 10 * scale);
        continue;
      }
      pen.globalAlpha = kind === "drift" ? 0.1 : 0.3;
      pen.fillRect(from, top, Math.max(until - from, 2 * scale), height);
      pen.globalAlpha = 1;
      if (kind !== "drift") continue;
      pen.fillRect(from, top, 2 * scale, height);
      pen.font = `600 ${12 * scale}px system-ui, sans-serif`;
      pen.textBaseline = "top";
      pen.textAlign = "left";
      pen.fillStyle = palette.colour("ink");
      const wide = pen.measureText(text).width;
      const at = Math.max(Math.min(from + 8 * scale, left + width - wide - 4 * scale), left + 4 * scale);
      pen.fillText(text, at, top + 14 * scale);
    }
    pen.restore();
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
      ...this.marks.filter((mark) => mark.first <= number && number <= mark.last).map((mark) => mark.text),
    ];
  }
}

function makeSteps(data) {
  const chart = new StepsPlot(data);
  const legend = element("ul", "chart-legend");
  legend.append(element("li", "key-recorded", "recorded"));
  if (chart.hasUnprofiled) legend.append(element("li", "key-unprofiled", "without the profiler (dashed)"));
  const kinds = new Set(data.marks.map((mark) => mark.kind));
  for (const [kind, [colour, name]] of Object.entries(RUN_MARKS)) {
    if (kinds.has(kind)) legend.append(element("li", `key-run key-run-${colour}`, name));
  }
  const alternative = tableAlternative("The steps as a table", ["step", "recorded", "without the profiler"], () =>
    chart.data[0]
      .slice(0, 1000)
      .map((number, i) => [
        `${number}`,
        formatDuration(chart.data[1][i] ?? null),
        formatDuration(chart.data[2][i] ?? null),
      ]),
  );
  return [chart.place, legend, alternative];
}
