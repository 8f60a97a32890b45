// What starts first, and what waits until it comes into sight.

const CHARTS = {
  timeline: makeTimeline,
  flames: makeFlames,
  roofline: makeRoofline,
  treemap: () => makeTreemap(pageData().flames),
  steps: makeSteps,
  memory: makeMemory,
  ranks: makeHeatMap,
};

function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

/** Call `start` once the element is nearly in sight. */
function whenNear(target, start) {
  const observer = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      start();
    },
    { rootMargin: "300px" },
  );
  observer.observe(target);
}

/** Copy a text, and say so on the button for a moment. */
async function copyText(button, text) {
  const title = button.dataset.title ?? button.textContent;
  button.dataset.title = title;
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    isCopied = copyBySelection(text); // a page from disk, or a browser that asks for permission
  }
  button.textContent = isCopied ? "Copied" : "Not copied";
  setTimeout(() => {
    button.textContent = title;
  }, 1500);
}

function copyBySelection(text) {
  const area = document.body.appendChild(document.createElement("textarea"));
  area.className = "unseen";
  area.value = text;
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  return isCopied;
}

function startCopyButtons() {
  for (const button of document.querySelectorAll("button.copy")) {
    const text = button.dataset.text ?? button.parentElement.querySelector(".copied").textContent;
    button.addEventListener("click", () => copyText(button, text));
  }
}

function startCharts() {
  for (const place of document.querySelectorAll("[data-chart]")) {
    const make = CHARTS[place.dataset.chart];
    whenNear(place, () => startChart(place, make));
  }
}

function startChart(place, make) {
  if (place.dataset.started) return;
  place.dataset.started = "yes";
  place.append(...make(pageData()[place.dataset.chart], place));
}

/** A link into the page opens what is folded there. */
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}

/** Paper has no buttons: what is folded opens, and what waits is drawn, in light colours and as wide as a page. */
function startPrinting() {
  const root = document.documentElement;
  let theme;
  const redraw = () => {
    changeTheme();
    for (const drawNow of DRAWINGS) drawNow();
  };
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details:not([open]):not(.alternative)")) {
      details.open = true;
      details.dataset.opened = "for print";
    }
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    root.classList.add("printing");
    for (const place of document.querySelectorAll("[data-chart]")) startChart(place, CHARTS[place.dataset.chart]);
    redraw();
  });
  addEventListener("afterprint", () => {
    for (const details of document.querySelectorAll("details[data-opened]")) {
      details.open = false;
      delete details.dataset.opened;
    }
    root.classList.remove("printing");
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    redraw();
  });
}

function start() {
  startTheme();
  startCopyButtons();
  startTables();
  startFindingButtons();
  startCharts();
  startPrinting();
  addEventListener("hashchange", openTarget);
  openTarget();
  document.documentElement.dataset.ready = "yes";
}

document.documentElement.classList.add("scripted");
for (const each of document.querySelectorAll(".script-only")) each.hidden = false;
recallTheme();
// After the first paint: the text is what one came for.
requestAnimationFrame(() => setTimeout(start));
