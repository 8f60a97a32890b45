// Between the findings of the page and their time in the timeline.

/** The number by which the page calls a finding of the report; "" for one that it shows in a line. */
function findingNumber(position) {
  const button = document.querySelector(`.show-in-timeline[data-finding="${position}"]`);
  return button ? button.closest(".finding").id.replace("finding-", "") : "";
}

function findingLines(finding) {
  const number = findingNumber(finding.finding);
  const title = number ? document.getElementById(`title-${number}`).textContent : "a finding that is shown in a line";
  return [title, formatCount(finding.start.length, "time")];
}

let timelineChart = null;

/** Buttons of the findings whose time is in the timeline lead there. */
function startFindingButtons() {
  const findings = pageData().timeline?.findings ?? [];
  const withTime = new Set(findings.filter((each) => each.start.length).map((each) => each.finding));
  for (const button of document.querySelectorAll(".show-in-timeline")) {
    const position = Number(button.dataset.finding);
    if (!withTime.has(position)) continue;
    button.hidden = false;
    button.addEventListener("click", () => {
      const place = document.querySelector('[data-chart="timeline"]');
      startChart(place, CHARTS.timeline);
      timelineChart.drawNow();
      timelineChart.showFinding(timelineChart.model.findings.find((each) => each.finding === position));
      document.getElementById("timeline").scrollIntoView();
      timelineChart.canvas.focus({ preventScroll: true });
    });
  }
}
