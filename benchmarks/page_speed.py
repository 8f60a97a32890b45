"""How fast a browser shows the page: python -m benchmarks.page_speed [TRACE] [--events 1000000] [--rounds 3].

The page of the lengthened trace is opened in Chromium, and a timeline of 100,000 items is zoomed and panned. The goals:
a first paint within 1 s, and a frame of the timeline within 16 ms. What the page takes to make: benchmarks.html_page.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

import perfdoctor
from benchmarks.headless_browser import Browser, Page, find_chromium
from benchmarks.html_page import SAMPLE, lengthen
from benchmarks.measure import run_perfdoctor
from perfdoctor.report.chart_data import RankCharts, StepTimeline, Track
from perfdoctor.reporters.html.html import Html

ITEMS = 100_000
LANES = 25
# The wheel turned once a frame, in over a place and out again. The chart's drawing comes between two callbacks of ours.
ZOOM = """(async () => {
  const canvas = document.querySelector('.chart-timeline canvas'), box = canvas.getBoundingClientRect(), took = [];
  for (let i = 0; i < 90; i++) {
    const how = {deltaY: i < 45 ? -60 : 60, ctrlKey: true, clientX: box.left + box.width / 3, cancelable: true};
    took.push(await new Promise(done => {
      let began;
      requestAnimationFrame(() => { began = performance.now(); });
      canvas.dispatchEvent(new WheelEvent('wheel', how));
      requestAnimationFrame(() => {
        canvas.getContext('2d').getImageData(0, 0, 1, 1);  // waits until what was drawn is there
        done(performance.now() - began);
      });
    }));
  }
  return took;
})()"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def many_items() -> StepTimeline:
    """A timeline of ITEMS items on LANES streams, a microsecond to a millisecond long."""
    rng = np.random.default_rng(0)
    count = ITEMS // LANES
    tracks = []
    for number in range(LANES):
        dur = np.exp(rng.uniform(np.log(1e3), np.log(1e6), count)).astype(np.int64)
        start = np.cumsum(dur + rng.integers(0, 20_000, count)) - dur
        name, colour = rng.integers(0, 200, count).astype(np.int32), rng.integers(0, 4, count).astype(np.int8)
        track = Track(
            f"stream {number}", "stream", start, dur, name, colour, np.zeros(count, np.int8), np.ones(count, np.int32)
        )
        tracks.append(track)
    span = max(int(track.start_ns[-1] + track.dur_ns[-1]) for track in tracks)
    names = tuple(f"kernel_{number}_128x128" for number in range(200))
    return StepTimeline(None, 0, span, tuple(tracks), names, ("gemm", "elementwise", "softmax", "norm"))


def first_paint_ms(browser: Browser, page: Path) -> float:
    """From the start of the navigation to the first text on the screen."""
    opened = browser.open(page)
    opened.wait_for(f"{PAINT} !== undefined")
    paint: float = opened.evaluate(PAINT)
    opened.close()
    return paint


def frame_times_ms(browser: Browser, page: Path) -> list[float]:
    """What each frame of a zoomed timeline takes to draw."""
    opened: Page = browser.open(page)
    opened.show(".chart-timeline canvas")
    took: list[float] = opened.evaluate(ZOOM)
    opened.close()
    return took


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?", default=SAMPLE, help="a short trace, as .json or .json.gz")
    parser.add_argument("--events", type=int, default=1_000_000, help="how many events the lengthened trace has")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the medians are printed")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        trace, page, crowded = (Path(folder, name) for name in ("long.json", "report.html", "crowded.html"))
        lengthen(options.trace, trace, options.events)
        run_perfdoctor("analyze", "-q", trace, "-o", page)
        report = replace(perfdoctor.analyze(SAMPLE), charts=RankCharts(None, many_items()))
        crowded.write_text(Html().render(report), encoding="utf-8")
        executable = find_chromium()
        if executable is None:
            print("Chromium is not installed: nothing was painted")
            return
        browser = Browser(executable, Path(folder, "profile"))
        try:
            for name, path in (("its page", page), (f"a page with {ITEMS:,} items", crowded)):
                paints = [first_paint_ms(browser, path) for _ in range(options.rounds)]
                print(
                    f"{name}: {path.stat().st_size / 1e6:.2f} MB, first paint after {median(paints):.0f} ms", flush=True
                )
            took = frame_times_ms(browser, crowded)
            print(f"a frame of {ITEMS:,} items: {median(took):.1f} ms in the median, {max(took):.1f} ms at most")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
