// The lanes of the ranks, in a notebook page. Python sends whole frames (`dashboard.py`); this draws the last one,
// and moves it on while a cell runs and no other frame comes. Nothing is loaded from anywhere.

const STYLE = `
.ranks { color: var(--jp-ui-font-color1, inherit); font: 13px/1.35 var(--jp-ui-font-family, sans-serif); max-width: 66em; container-type: inline-size; }
.ranks header { display: flex; gap: 1em; align-items: baseline; }
.ranks .note { min-height: 1.35em; margin: 2px 0; font-weight: bold; }
.ranks table { border-collapse: collapse; width: 100%; table-layout: fixed; }
.ranks th, .ranks td { padding: 2px 6px; text-align: left; vertical-align: top; overflow-wrap: anywhere; background: none; }
.ranks thead th { font-weight: normal; border-bottom: 1px solid currentColor; vertical-align: bottom; }
.ranks tbody th span { padding: 1px 6px; border-radius: 3px; }
.ranks .number { text-align: right; font-variant-numeric: tabular-nums; }
@container (max-width: 60em) { .ranks .number { display: none; } } /* in a narrow page the lanes come first */
.ranks tr.circle .now { font-weight: bold; }
.ranks tbody tr:focus-visible, .ranks button:focus-visible { outline: 3px solid var(--jp-brand-color1, #0072B2); }
.ranks .now { min-height: 1.35em; contain: content; }
.ranks canvas { display: block; width: 100%; height: 22px; background: white; border: 1px solid #222222; box-sizing: border-box; }
.ranks ul { display: flex; flex-wrap: wrap; gap: 2px 1em; list-style: none; margin: 4px 0; padding: 0; }
.ranks li canvas { display: inline-block; width: 28px; height: 14px; vertical-align: middle; margin-right: 4px; }
`;
const SHARES = ["computing", "waiting", "transferring"];
const COLUMNS = [["rank", "6em"], ["last 10 s", "auto"], ["in this cell", "9em"], ...SHARES.map(name => [name, "7.4em"])];
const TILE = 10; // pixels of the hatching
const SILENT = 2000; // milliseconds without a frame: nothing is known of the ranks then

/** A new element with text and attributes. */
function make(tag, text = "", attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** Set the text of a node if it has changed: the browser does nothing for a text that has not. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The colour and hatching of an activity, named as matplotlib names them. */
function filling({ facecolor, hatch }) {
  const tile = make("canvas", "", { width: TILE, height: TILE }), pen = tile.getContext("2d");
  pen.fillStyle = facecolor;
  pen.fillRect(0, 0, TILE, TILE);
  pen.strokeStyle = pen.fillStyle = "#222222";
  pen.lineWidth = 1.3;
  const line = (...points) => { pen.beginPath(); pen.moveTo(points[0], points[1]); pen.lineTo(points[2], points[3]); pen.stroke(); };
  if (hatch.includes(".")) for (const at of [2.5, 7.5]) { pen.beginPath(); pen.arc(at, at, 1.3, 0, 7); pen.fill(); }
  if (/[/x]/.test(hatch)) for (const shift of [-TILE, 0, TILE]) line(shift - 1, TILE + 1, shift + TILE + 1, -1);
  if (/[\\x]/.test(hatch)) for (const shift of [-TILE, 0, TILE]) line(shift - 1, -1, shift + TILE + 1, TILE + 1);
  if (hatch.includes("-")) line(0, TILE / 2, TILE, TILE / 2);
  return pen.createPattern(tile, "repeat");
}

/** Draw a lane: one letter per tick, the newest at the right edge. */
function draw(canvas, ticks, fillings, kept) {
  const pen = canvas.getContext("2d"), { width, height } = canvas, step = width / kept, first = kept - ticks.length;
  pen.clearRect(0, 0, width, height);
  for (let from = 0, to; from < ticks.length; from = to) {
    for (to = from + 1; ticks[to] === ticks[from]; ) to++;
    if (!fillings[ticks[from]]) continue;
    const left = Math.round((first + from) * step), right = Math.round((first + to) * step);
    pen.fillStyle = fillings[ticks[from]];
    pen.fillRect(left, 0, right - left, height);
    pen.fillStyle = "#222222";
    pen.fillRect(left, 0, 1, height);
  }
}

function render({ model, el }) {
  const { looks, ranks, kept, milliseconds } = model.get("looks");
  const fillings = Object.fromEntries(looks.map(look => [look.letter, filling(look)]));
  const root = make("section", "", { class: "ranks", "aria-label": "Live view of the ranks" });
  root.dataset.lmSuppressShortcuts = "true"; // JupyterLab: the arrow keys are ours while the focus is here
  const head = make("header"), when = make("span"), pause = make("button", "Pause", { type: "button", "aria-pressed": "false" });
  head.append(make("strong", "Ranks, live"), when, pause);
  const note = make("p", "", { class: "note", role: "status" });
  const table = make("table"), body = make("tbody"), titles = make("tr"), columns = make("colgroup");
  for (const [title, width] of COLUMNS) {
    const kind = SHARES.includes(title) ? "number" : "";
    titles.append(make("th", title, { scope: "col", class: kind }));
    columns.append(make("col", "", { style: `width: ${width}`, class: kind }));
  }
  table.append(columns, make("thead"), body);
  table.tHead.append(titles);
  const legend = make("ul", "", { "aria-label": "Legend" });
  for (const look of looks) {
    const item = make("li"), swatch = make("canvas", "", { width: 28, height: 14, "aria-hidden": "true" });
    draw(swatch, look.letter.repeat(kept), fillings, kept);
    item.append(swatch, look.label);
    legend.append(item);
  }
  root.append(make("style", STYLE), head, note, table, legend);
  el.append(root);

  let rows = [], frame = { lanes: [] }, received = 0, pending = 0, numbersShown = -Infinity, timer = 0;
  const sizes = new ResizeObserver(entries => {
    for (const { target, contentRect } of entries) {
      target.width = Math.round(contentRect.width * devicePixelRatio);
      target.height = Math.round(contentRect.height * devicePixelRatio);
    }
    schedule();
  });
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

  /** A row of the table; the first can be reached with Tab, the others with the arrow keys. */
  function row(lane, index) {
    const tr = make("tr", "", { tabindex: index ? "-1" : "0", "data-rank": index });
    const name = make("th", "", { scope: "row" }), chip = make("span");
    Object.assign(chip.style, ranks[index]);
    name.append(chip);
    const canvas = make("canvas", "", { role: "img" }), cell = make("td"), now = make("div", "", { class: "now" });
    cell.append(canvas, now);
    const numbers = [make("td"), ...SHARES.map(() => make("td", "", { class: "number" }))];
    tr.append(name, cell, ...numbers);
    body.append(tr);
    sizes.observe(canvas);
    return { tr, chip, canvas, now, numbers };
  }

  /** What every rank is doing now. */
  function showActivities() {
    setText(note, frame.note);
    frame.lanes.forEach((lane, index) => {
      const { tr, now } = rows[index];
      setText(now, (lane.circle ? "↻ " : "") + lane.now);
      if (tr.dataset.doing === lane.doing && tr.classList.contains("circle") === lane.circle) return;
      tr.dataset.doing = lane.doing;
      tr.classList.toggle("circle", lane.circle);
    });
  }

  /** Numbers, and what a screen reader says, once per second: nobody reads them ten times per second. */
  function showNumbers() {
    setText(when, frame.when);
    frame.lanes.forEach((lane, index) => {
      const { tr, chip, canvas, numbers } = rows[index];
      setText(chip, lane.name);
      [lane.traffic, ...lane.shares.map(share => `${share} %`)].forEach((words, column) => setText(numbers[column], words));
      const shares = lane.shares.map((share, at) => `${SHARES[at]} ${share} %`).join(", ");
      const circle = lane.circle ? ", in a circle of waiting" : "", last = shares && ` Last 10 s: ${shares}.`;
      tr.setAttribute("aria-label", `${lane.name}: ${lane.now}${circle}. In this cell: ${lane.traffic}.${last}`);
      canvas.setAttribute("aria-label", shares || "nothing yet");
    });
  }

  function paint(time) {
    pending = 0;
    const due = time - numbersShown >= 1000 || !frame.running;
    if (pause.getAttribute("aria-pressed") === "true" || (calm.matches && !due)) return;
    if (rows.length !== frame.lanes.length) {
      body.replaceChildren();
      rows = frame.lanes.map(row);
    }
    showActivities();
    if (due) {
      numbersShown = time;
      showNumbers();
    }
    if (!root.isConnected) return; // `sizes` calls again when it is on the page
    // A frame of a running cell brings two ticks: the last is drawn a tick later, and repeated until the next frame comes.
    const since = frame.running ? Math.min(performance.now() - received, SILENT) : milliseconds;
    const passed = Math.min(kept, Math.floor(since / milliseconds));
    frame.lanes.forEach((lane, index) => {
      const ticks = lane.ticks.slice(0, -1) + (lane.ticks.at(-1) ?? "").repeat(passed);
      draw(rows[index].canvas, ticks.slice(-kept), fillings, kept);
    });
  }
  const schedule = () => { pending ||= requestAnimationFrame(paint); }; // a page that is not shown draws nothing

  function receive() {
    frame = JSON.parse(model.get("frame"));
    received = performance.now();
    clearInterval(timer);
    if (frame.running) timer = setInterval(() => (performance.now() - received < SILENT ? schedule() : clearInterval(timer)), milliseconds);
    schedule();
  }

  pause.onclick = () => {
    const paused = pause.getAttribute("aria-pressed") !== "true";
    pause.setAttribute("aria-pressed", paused);
    pause.textContent = paused ? "Resume" : "Pause";
    schedule();
  };
  body.onkeydown = event => {
    const at = rows.findIndex(({ tr }) => tr === event.target), last = rows.length - 1;
    const to = { ArrowDown: Math.min(at + 1, last), ArrowUp: Math.max(at - 1, 0), Home: 0, End: last }[event.key];
    if (event.key === "p") pause.click();
    else if (at < 0 || to === undefined) return;
    else {
      rows.forEach(({ tr }, index) => tr.setAttribute("tabindex", index === to ? "0" : "-1"));
      rows[to].tr.focus();
    }
    event.preventDefault();
    event.stopPropagation();
  };
  model.on("change:frame", receive);
  model.send({ seen: true });
  receive();
  return () => { cancelAnimationFrame(pending); clearInterval(timer); sizes.disconnect(); };
}

export default { render };
