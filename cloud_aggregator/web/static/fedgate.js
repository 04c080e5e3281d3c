// Charts of the pages, and their renewal when the server says that something has changed.
"use strict";

const COLOURS = { now: "--now", limit: "--limit", usual: "--usual", low: "--band", high: "--band" };

function colourOf(role) {
  return getComputedStyle(document.documentElement).getPropertyValue(COLOURS[role] || "--text").trim();
}

function formatValue(value) {
  return value === null || value === undefined ? "–" : Number(value).toPrecision(4).replace(/\.?0+$/, "").replace(/\.?0+e/, "e");
}

function describeSeries(one) {
  const line = { now: { width: 2 }, limit: { width: 2, dash: [8, 4] }, usual: { width: 1.5 } }[one.role] || { width: 1, dash: [3, 3] };
  return { label: one.label, stroke: colourOf(one.role), points: { show: false }, value: (_, value) => formatValue(value), ...line };
}

function draw(element) {
  const chart = JSON.parse(element.dataset.chart);
  const isTime = chart.kind === "time";
  // A logarithmic axis has no zero: what is not above it is not drawn.
  const columns = chart.series.map((one) => one.values.map((value) => (chart.is_log && value <= 0 ? null : value)));
  const axis = { stroke: colourOf(""), grid: { stroke: getComputedStyle(document.documentElement).getPropertyValue("--line").trim() } };
  const options = {
    width: element.clientWidth || 600,
    height: 260,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    scales: { x: { time: isTime }, y: { distr: chart.is_log ? 3 : 1 } },
    axes: [{ ...axis, label: isTime ? "UTC" : "Hz" }, { ...axis, size: 70, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : formatValue(tick))) }],
    series: [{ label: isTime ? "time" : "Hz", value: isTime ? undefined : (_, value) => formatValue(value) }, ...chart.series.map(describeSeries)],
    bands: chart.kind === "frequency" ? [{ series: [4, 2], fill: getComputedStyle(document.documentElement).getPropertyValue("--band-fill").trim() }] : [],
  };
  element.replaceChildren();
  element.plot = new uPlot(options, [chart.x, ...columns], element);
  element.drawn = element.dataset.chart;
}

function drawAll() {
  for (const element of document.querySelectorAll(".chart")) {
    if (element.drawn !== element.dataset.chart || !element.firstChild) draw(element);
  }
}

function isWriting() {
  const active = document.activeElement;
  return active && active.closest("#main form") && active.matches("input, select, textarea");
}

let isWaiting = false;

function renew() {
  if (isWriting()) {
    isWaiting = true; // nobody loses what they write
    return;
  }
  isWaiting = false;
  htmx.ajax("GET", location.pathname + location.search, { target: "#main", select: "#main", swap: "outerMorph" });
}

addEventListener("DOMContentLoaded", () => {
  drawAll();
  const connection = document.getElementById("connection");
  document.body.addEventListener("changed", renew);
  document.body.addEventListener("htmx:sse:error", () => { connection.hidden = false; });
  document.body.addEventListener("htmx:sse:after:connection", () => { connection.hidden = true; });
  document.body.addEventListener("htmx:after:swap", drawAll);
  document.body.addEventListener("focusout", () => setTimeout(() => { if (isWaiting) renew(); }, 500));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.querySelectorAll(".chart").forEach(draw));
  addEventListener("resize", () => document.querySelectorAll(".chart").forEach((one) => one.plot && one.plot.setSize({ width: one.clientWidth, height: 260 })));
});
