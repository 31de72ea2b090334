// The console in the browser: live figures, ages, copying commands. Pages work without it.
//
// Always true: HTML comes only from this server, where it is escaped; a region that the reader uses
// just now (focus is kept, a selection stays) is not pulled away.

const STALE_MS = 5000;
const AGAIN_MS = 3000;

let ahead = Number(document.body.dataset.now) * 1000 - Date.now(); // the server's clock against ours
let polledAt = 0;
let trouble = "";
const held = new Map(); // regions that wait until the reader's selection is gone

// -- ages

function age(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit} ago`;
  }
  return `${Math.round(Math.max(seconds, 0))} s ago`;
}

function showAges(within) {
  const now = (Date.now() + ahead) / 1000;
  for (const each of within.querySelectorAll("time.ago")) {
    if (!each.title) each.title = each.textContent;
    const text = age(now - Number(each.dataset.at));
    if (each.textContent !== text) each.textContent = text;
  }
}

// -- commands

function offerCopies(within) {
  for (const button of within.querySelectorAll("button.copy")) button.hidden = !navigator.clipboard;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = "copied";
  document.getElementById("says").textContent = "Copied";
  setTimeout(() => { button.textContent = "copy"; }, 1500);
});

// -- the name of whoever decides, for the next form

for (const field of document.querySelectorAll("[data-remember]")) {
  const name = `semel.${field.dataset.remember}`;
  if (!field.value) field.value = localStorage.getItem(name) ?? "";
  field.form.addEventListener("submit", () => localStorage.setItem(name, field.value));
}

// -- live regions

function isSelected(region) {
  const selection = getSelection();
  return !!selection && !selection.isCollapsed && selection.containsNode(region, true);
}

function keyOf(element) {
  if (!element) return null;
  return element.dataset.key ?? element.dataset.copy ?? (element.id ? `#${element.id}` : element.textContent);
}

function replace(region, html) {
  const active = region.contains(document.activeElement) ? document.activeElement : null;
  const key = keyOf(active);
  const tag = active?.tagName;
  const opened = new Set([...region.querySelectorAll("details[open]")].map((each) => each.id));
  const scrolled = [...region.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  region.innerHTML = html;
  region.querySelectorAll(".scroll").forEach((each, number) => { each.scrollLeft = scrolled[number] ?? 0; });
  for (const each of region.querySelectorAll("details")) if (opened.has(each.id)) each.open = true;
  showAges(region);
  offerCopies(region);
  if (active) {
    const same = [...region.querySelectorAll(tag)].find((each) => keyOf(each) === key);
    (same ?? document.getElementById("main")).focus({ preventScroll: true });
  }
}

function update(id, html) {
  const region = document.getElementById(id);
  if (!region) return;
  if (isSelected(region)) {
    held.set(id, html);
    return;
  }
  held.delete(id);
  replace(region, html);
}

function verdict() {
  return document.querySelector(".verdict, .advice .what")?.textContent.trim() ?? "";
}

function showLive() {
  const place = document.getElementById("live");
  const quiet = Date.now() - polledAt;
  const stale = !!trouble || quiet > STALE_MS;
  const clock = new Date(polledAt + ahead).toISOString().slice(11, 19);
  place.hidden = false;
  place.classList.toggle("stale", stale);
  const text = trouble ? `not live: ${trouble}` : stale ? `not live: as of ${clock}` : `live ${clock}`;
  const shown = document.getElementById("live-text");
  if (shown.textContent !== text) shown.textContent = text;
}

function listen(address) {
  const source = new EventSource(address);
  source.addEventListener("regions", (event) => {
    const before = verdict();
    for (const [id, html] of Object.entries(JSON.parse(event.data))) update(id, html);
    const after = verdict();
    if (before !== after) document.getElementById("says").textContent = after;
  });
  source.addEventListener("polled", (event) => {
    const polled = JSON.parse(event.data);
    polledAt = Date.now();
    ahead = polled.at * 1000 - polledAt;
    trouble = polled.trouble;
    showLive();
  });
  source.addEventListener("error", () => {
    if (source.readyState !== EventSource.CLOSED) return; // the browser connects again by itself
    source.close();
    setTimeout(() => listen(address), AGAIN_MS);
  });
  addEventListener("pagehide", () => source.close(), { once: true });
}

showAges(document);
offerCopies(document);
setInterval(() => {
  showAges(document);
  for (const [id, html] of [...held]) update(id, html);
  if (document.body.dataset.live) showLive();
}, 1000);

if (document.body.dataset.live) {
  polledAt = Date.now();
  listen(document.body.dataset.live);
}
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
