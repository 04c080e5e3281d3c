// Charts of the pages, and their renewal when the server says that something has changed.
"use strict";

const COLOURS = { now: "--now", limit: "--limit", usual: "--usual", low: "--band", high: "--band" };

function formatValue(value) {
  return value === null || value === undefined ? "–" : String(Number(Number(value).toPrecision(4)));
}

// In the legend: what a line is alone, as long as no cursor asks for a value.
function formatAtCursor(format) {
  return (_plot, value, _series, index) => (index === null ? "" : value === null ? "–" : format(value));
}

function describeSeries(one) {
  const line = { now: { width: 2 }, limit: { width: 2, dash: [8, 4] }, usual: { width: 1.5 } }[one.role] || { width: 1, dash: [3, 3] };
  return { label: one.label, stroke: readVariable(COLOURS[one.role]), points: { show: false }, value: formatAtCursor(formatValue), ...line };
}

const UNITS = { time: "UTC", frequency: "Hz", round: "round", day: "day" }; // of the horizontal axis
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]; // steps between ticks

function readVariable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function isDecade(value) {
  return value === 0 || Number.isInteger(Math.round(1e6 * Math.log10(Math.abs(value))) / 1e6);
}

function keepDecades(_, ticks) {
  return ticks.map((tick) => (isDecade(tick) ? tick : null));
}

function describeScale(chart) {
  if (chart.linear_to > 0) return { distr: 4, asinh: chart.linear_to }; // logarithmic on both sides of zero
  return { distr: chart.is_log ? 3 : 1 };
}

// Of a chart over days the ticks say the day too.
function formatMoment(seconds, isOverDays) {
  const text = new Date(seconds * 1000).toISOString();
  return isOverDays ? text.slice(5, 16).replace("T", " ") : text.slice(11, 19);
}

// Moments as lines across, each with its word above the plot, a line below the one before.
function drawMarks(plot, marks) {
  const { left, top, width, height } = plot.bbox, line = 16 * devicePixelRatio;
  plot.ctx.save();
  plot.ctx.strokeStyle = plot.ctx.fillStyle = readVariable("--text");
  plot.ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  marks.forEach(({ x, label }, place) => {
    const at = plot.valToPos(x, "x", true), above = (marks.length - place) * line;
    if (at < left || at > left + width) return;
    plot.ctx.textAlign = at > left + width / 2 ? "right" : "left";
    plot.ctx.fillRect(at, top - above, devicePixelRatio, height + above);
    plot.ctx.fillText(` ${label} `, at, top - above + 0.8 * line);
  });
  plot.ctx.restore();
}

function draw(element) {
  const chart = JSON.parse(element.dataset.chart);
  const isTime = chart.kind === "time", isWhole = ["round", "day"].includes(chart.kind), isCurved = chart.is_log || chart.linear_to > 0;
  // A logarithmic axis has no zero: what is not above it is not drawn.
  const columns = chart.series.map((one) => one.values.map((value) => (chart.is_log && value <= 0 ? null : value)));
  const grid = { stroke: readVariable("--line"), width: 1 }, axis = { stroke: readVariable("--text"), grid, ticks: grid };
  const isOverDays = isTime && chart.x[chart.x.length - 1] - chart.x[0] > 86400;
  const formatClock = (seconds) => formatMoment(seconds, isOverDays);
  const day = new Date(chart.x[0] * 1000).toISOString().slice(0, 10);
  const options = {
    width: element.clientWidth || 600,
    height: 260,
    padding: [chart.marks ? 16 * chart.marks.length + 8 : null, 30, null, null], // for marks, and half of the last label
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    scales: { x: { time: isTime }, y: describeScale(chart) },
    axes: [
      { ...axis, ...(isWhole ? { incrs: WHOLE } : {}), label: isTime ? `UTC, from ${day}` : UNITS[chart.kind], space: isTime ? (isOverDays ? 110 : 70) : 50, values: isTime ? (_, ticks) => ticks.map(formatClock) : undefined },
      { ...axis, ...(isCurved ? { grid: { ...grid, filter: keepDecades } } : {}), size: 70, filter: isCurved ? keepDecades : undefined, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : formatValue(tick))) },
    ],
    series: [{ label: UNITS[chart.kind], value: formatAtCursor(isTime ? formatClock : formatValue) }, ...chart.series.map(describeSeries)],
    hooks: { draw: [(plot) => drawMarks(plot, chart.marks || [])] },
    bands: chart.kind === "frequency" ? [{ series: [4, 2], fill: readVariable("--band-fill") }] : [],
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

// Who has no mouse moves what is too wide by the arrow keys, once it can have the focus.
function markWide() {
  for (const table of document.querySelectorAll("table")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
    else table.removeAttribute("tabindex");
  }
}

function renewLooks() {
  drawAll();
  markWide();
}

function isWriting() {
  const active = document.activeElement;
  return active && active.closest("#main form") && active.matches("input, select, textarea");
}

// Times as long as a renewal took, and at most so many ms: where something changes every second nobody takes more than a tenth.
const RESTS = 9, REST_MAX = 10000;

let isWaiting = false, isRenewing = false, isStale = false, isShown = false;

function pause(duration) {
  return new Promise((over) => setTimeout(over, duration));
}

async function renew() {
  isStale = true;
  if (isRenewing) return; // of two requests at a time htmx drops one: it may be the one with the news
  isRenewing = true;
  try {
    while (isStale && !(isWaiting = isWriting())) { // nobody loses what they write
      isStale = isShown = false;
      const begun = performance.now();
      await htmx.ajax("GET", location.pathname + location.search, { target: "#main", select: "#main", swap: "outerMorph" });
      isStale ||= !isShown; // no answer, or none within the time that base.html gives a request: it is asked for again
      await pause(isShown ? Math.min(RESTS * (performance.now() - begun), REST_MAX) : REST_MAX);
    }
  } finally {
    isRenewing = false;
  }
}

// What the server sends has every fold shut: those that somebody has opened are opened again.
function listOpen() {
  return [...document.querySelectorAll("#main details[open]")].map((one) => one.textContent);
}

function reopen(folds) {
  for (const one of document.querySelectorAll("#main details")) one.open = folds.includes(one.textContent);
}

addEventListener("changed", renew); // from now on: the stream may have begun before all of the page was read

addEventListener("DOMContentLoaded", () => {
  renewLooks();
  const connection = document.getElementById("connection");
  const complain = (event) => {
    if (event.detail.status === 401 || event.detail.ctx?.response?.status === 401) location.reload(); // to the login
    connection.hidden = false;
  };
  setInterval(renew, 60000); // a service that hangs or ends changes nothing, and that is news, too
  for (const name of ["htmx:sse:error", "htmx:response:error", "htmx:error"]) document.body.addEventListener(name, complain);
  document.body.addEventListener("htmx:sse:after:connection", () => { if (!connection.hidden) renew(); });
  let folds = [];
  document.body.addEventListener("htmx:before:swap", () => { folds = listOpen(); });
  document.body.addEventListener("htmx:after:swap", () => { connection.hidden = isShown = true; reopen(folds); renewLooks(); });
  document.body.addEventListener("focusout", () => setTimeout(() => { if (isWaiting) renew(); }, 500));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.querySelectorAll(".chart").forEach(draw));
  matchMedia("print").addEventListener("change", () => document.querySelectorAll(".chart").forEach(draw));
  addEventListener("resize", markWide);
  addEventListener("resize", () => document.querySelectorAll(".chart").forEach((one) => one.plot && one.plot.setSize({ width: one.clientWidth, height: 260 })));
});
