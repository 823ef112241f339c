// What pages do beyond being read; each works without this file too.

// A part of the page that renews itself: data-refresh is the pause in seconds.
function renew() {
  for (const part of document.querySelectorAll("[data-refresh][id]")) {
    const pause = Number(part.dataset.refresh) * 1000;
    setTimeout(() => renewOne(part.id, pause), pause);
  }
}

async function renewOne(id, pause) {
  const part = document.getElementById(id);
  if (!part) return;
  if (!document.hidden && !isInUse(part)) {
    try {
      const answer = await fetch(location.href, {
        headers: { "x-requested-with": "console" },
        redirect: "error",
      });
      if (answer.status === 401) return location.reload();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById(id);
      if (answer.ok && fresh && !isInUse(part)) replace(part, fresh);
      if (answer.ok) replaceNotices(page);
      tellAge(part, answer.ok ? "" : page.querySelector("h1")?.textContent || answer.statusText);
    } catch {
      tellAge(part, "The console does not answer");
    }
  }
  setTimeout(() => renewOne(id, pause), pause);
}

// Which servers do not answer; a screen reader hears of it when it changes.
function replaceNotices(page) {
  const shown = document.getElementById("notices");
  const fresh = page.getElementById("notices");
  if (shown && fresh && shown.textContent !== fresh.textContent) {
    shown.replaceChildren(...fresh.childNodes);
  }
}

// What is shown stays while nothing newer comes, and says so.
function tellAge(part, problem) {
  const known = document.getElementById(`${part.id}-age`);
  if (!problem) {
    known?.remove();
  } else if (!known) {
    const note = document.createElement("p");
    note.id = `${part.id}-age`;
    note.className = "banner warn";
    note.setAttribute("role", "status");
    note.textContent = `Not renewed since ${new Date().toLocaleTimeString()}: ${problem}.`;
    part.before(note);
  }
}

function isInUse(part) {
  const selection = getSelection();
  const hasSelection = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  return part.contains(document.activeElement) || hasSelection;
}

function replace(part, fresh) {
  const known = new Set([...part.querySelectorAll("[data-key]")].map((each) => each.dataset.key));
  const open = [...part.querySelectorAll("details")].map((each) => each.open);
  if (known.size) {
    for (const row of fresh.querySelectorAll("[data-key]")) {
      if (!known.has(row.dataset.key)) row.classList.add("fresh");
    }
  }
  fresh.querySelectorAll("details").forEach((each, at) => { if (open[at]) each.open = true; });
  part.replaceChildren(...fresh.childNodes);
  localTimes(part);
}

// Times stand in UTC; the reader's own zone is the title.
function localTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(each.dateTime);
    if (!isNaN(moment)) each.title = `${moment.toLocaleString()} here`;
  }
}

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    const source = document.getElementById(copy.dataset.copy);
    await navigator.clipboard.writeText(source.textContent);
    const before = copy.textContent;
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = before; }, 1500);
  }
  const back = event.target.closest("[data-back]");
  if (back && history.length > 1) {
    event.preventDefault();
    history.back();
  }
  const all = event.target.closest("[data-all]");
  if (all) {
    for (const each of document.getElementsByName(all.dataset.all)) each.checked = all.checked;
  }
});

// "/" goes to the search of the page.
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  const search = document.querySelector("input[type=search]");
  if (search) {
    event.preventDefault();
    search.focus();
    search.select();
  }
});

localTimes(document);
renew();
