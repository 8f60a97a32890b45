// Figures as people read them, in the words of the text beside the charts.

const UNKNOWN = "n/a";

function threeDigits(value) {
  if (value < 9.995) return value.toFixed(2);
  return value < 99.95 ? value.toFixed(1) : value.toFixed(0);
}

/** A time in the unit that suits it: "43.1 ms", "812 us"; "n/a" for null. */
function formatDuration(ns) {
  if (ns === null || ns === undefined || Number.isNaN(ns)) return UNKNOWN;
  for (const [factor, unit] of [
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "us"],
  ]) {
    if (ns >= 0.9995 * factor) return `${threeDigits(ns / factor)} ${unit}`;
  }
  return ns < 0.5 ? "0 ms" : `${ns.toFixed(0)} ns`;
}

/** A share from 0 to 1 as a percentage: "44%", "3.2%". */
function formatShare(share) {
  if (share === null || share === undefined) return UNKNOWN;
  const percent = 100 * share;
  if (percent && percent < 0.05) return "<0.1%";
  return percent > 0 && percent < 9.95 ? `${percent.toFixed(1)}%` : `${percent.toFixed(0)}%`;
}

/** A figure with the prefix of its unit: "1.31 GB", "312 TFLOP/s". */
function formatQuantity(value, unit) {
  for (const [factor, prefix] of [
    [1e15, "P"],
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (value >= 0.9995 * factor) return `${threeDigits(value / factor)} ${prefix}${unit}`;
  }
  return `${threeDigits(value)} ${unit}`;
}

/** A number with its noun: "1 item", "8 items". */
function formatCount(count, noun, plural = `${noun}s`) {
  return `${count.toLocaleString("en-US")} ${count === 1 ? noun : plural}`;
}
