// The script of Carillon's pages. They work without it: it keeps pages current, shows how long ago things were, and handles
// keys. It writes no HTML.
(() => {
  "use strict";

  const $ = (id) => document.getElementById(id);
  const now = () => performance.now();

  const SILENCE = 40_000; // a stream that says nothing for so long is dead
  const OLD = 20_000; // from this age on, a page says how old it is

  // ---- Times -------------------------------------------------------------------------------------------------------

  // As in the CLI: two units.
  const approximate = (ms) => {
    const s = Math.floor(ms / 1000);
    const two = (large, name, small, smallName) => {
      const rest = Math.floor((s % large) / small);
      return Math.floor(s / large) + name + (rest ? " " + rest + smallName : "");
    };
    if (s < 60) return s + "s";
    if (s < 3600) return two(60, "m", 1, "s");
    if (s < 86400) return two(3600, "h", 60, "m");
    if (s < 100 * 86400) return two(86400, "d", 3600, "h");
    return Math.floor(s / 86400) + "d";
  };

  // The clock of the browser may be wrong. The page says when it was made by the clock of the node.
  const clockOffset = (() => {
    const at = Date.parse(document.querySelector("meta[name=carillon-now]")?.content);
    return Number.isNaN(at) ? 0 : at - (performance.timeOrigin + (performance.getEntriesByType("navigation")[0]?.responseStart ?? 0));
  })();

  const relative = (el, at) => {
    const ms = at - (Date.now() + clockOffset);
    if ("ago" in el.dataset) return -ms < 1000 ? "now" : approximate(-ms) + " ago";
    if (ms >= 1000) return "in " + approximate(ms);
    return ms > -60_000 ? "now" : "due"; // what should have come is not past: the page may be old, or the task late
  };

  const ageTimes = () => {
    for (const el of document.querySelectorAll("time[data-ago], time[data-left]")) {
      const at = Date.parse(el.dateTime);
      if (Number.isNaN(at)) continue;
      const text = relative(el, at);
      if (el.textContent !== text) el.textContent = text;
    }
  };

  // ---- The map of the load -----------------------------------------------------------------------------------------

  // An hour of the map is a link to its minutes. A mouse also reaches each minute.
  const minuteAt = (e) => {
    const map = e.target instanceof Element ? e.target.closest("a.hour .minutes") : null;
    if (!map) return null;
    const box = map.getBoundingClientRect();
    const minute = Math.min(59, Math.max(0, Math.floor(((e.clientX - box.left) / box.width) * 60)));
    const hour = map.closest("a.hour");
    return { map, hour, minute, runs: hour.dataset.counts.split(" ")[minute] };
  };

  document.addEventListener("mousemove", (e) => {
    const at = minuteAt(e);
    if (at) at.hour.title = ":" + String(at.minute).padStart(2, "0") + " " + at.runs + (at.runs === "1" ? " run" : " runs");
  });

  document.addEventListener("click", (e) => {
    const at = minuteAt(e);
    if (!at || at.runs === "0" || e.detail === 0 || e.button !== 0 || e.ctrlKey || e.metaKey || e.shiftKey) return;
    const url = new URL(at.hour.href);
    const begins = Date.parse(url.searchParams.get("hour"));
    url.searchParams.delete("hour");
    url.searchParams.set("minute", new Date(begins + at.minute * 60_000).toISOString().replace(".000Z", "Z"));
    e.preventDefault();
    location.assign(url);
  });

  // ---- The notice --------------------------------------------------------------------------------------------------

  const notice = (kind, text, ...links) => {
    const el = $("notice");
    if (!el) return;
    el.hidden = !text;
    el.className = "banner " + kind;
    el.replaceChildren(...(text ? [text] : []));
    for (const link of links) {
      const a = document.createElement("a");
      a.href = link.href;
      a.textContent = link.text;
      el.append(" ", a);
    }
  };

  const isAway = () => document.documentElement.hasAttribute("data-away");
  const setAway = (away) => document.documentElement.toggleAttribute("data-away", away);

  // A page that was opened while the cluster did not answer says so in its content, which may be empty.
  const isBack = () => {
    setAway(false);
    notice("", "");
    $("away")?.remove();
    if ($("content")?.hasAttribute("data-empty")) location.reload();
  };

  document.addEventListener("submit", (e) => {
    const form = e.target;
    if (!isAway() || form.getAttribute("method") !== "post" || form.matches(".theme, [action='/ui/logout']")) return;
    e.preventDefault();
    notice("warn", "Nothing can be changed while the cluster does not answer. What you have entered stays.");
  });

  // ---- The node ----------------------------------------------------------------------------------------------------

  // A stream says something at least every five seconds. If it does not, or a form gets no answer, the node is asked whether
  // it still answers. While it does not, links and forms would lead to an error page of the browser, so they wait.
  const QUIET = 7_000;
  const ASK_WITHIN = 3_000;
  const node = { unreachable: false, asking: false, asked: 0 };

  // The same page on the other nodes with an API. Their sessions are their own.
  const otherNodes = () => [...document.querySelectorAll("[data-other]")]
    .filter((el) => /^https?:\/\/[^\s/?#]+$/.test(el.dataset.other))
    .map((el) => ({ href: el.dataset.other + location.pathname + location.search, text: el.textContent }));

  const setUnreachable = (unreachable) => {
    if (node.unreachable === unreachable) return;
    node.unreachable = unreachable;
    document.documentElement.toggleAttribute("data-unreachable", unreachable);
    if (unreachable) {
      const others = otherNodes();
      notice("warn", "This node does not answer. Links and buttons work again when it does." + (others.length ? " The same page on:" : ""), ...others);
    } else {
      notice("", "");
      stream.failures = 0;
      stream.message = now();
      live?._htmx?.sse?.delayCanceller?.(); // htmx waits before it connects again
      connect();
    }
    showAge();
  };

  const askNode = async () => {
    if (node.asking) return;
    node.asking = true;
    node.asked = now();
    let answers = false;
    try {
      const res = await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(ASK_WITHIN) });
      answers = res.ok;
    } catch {
      // no answer
    }
    node.asking = false;
    setUnreachable(!answers);
  };

  const checkNode = () => {
    if (document.hidden || stream.over || now() - node.asked < ASK_WITHIN) return;
    if (node.unreachable || (live && !stream.paused && now() - stream.message > QUIET)) askNode();
  };

  document.addEventListener("htmx:error", (e) => e.target !== live && askNode());

  // Only the notice leads away from the page.
  const guard = (e) => {
    if (!node.unreachable || e.target.closest("#notice")) return;
    const link = e.target.closest("a[href]");
    if (e.type === "click" && (!link || link.origin !== location.origin || link.getAttribute("href").startsWith("#"))) return;
    e.preventDefault();
    e.stopPropagation();
    $("notice")?.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("click", guard, true);
  document.addEventListener("submit", guard, true);

  // ---- Forms that are being sent -----------------------------------------------------------------------------------

  // One form of a page is sent at a time. On a slow connection, a second click would send it again. In a part that changes,
  // it would even hit the form that has taken the place of the first one.
  const SENDING = 30_000; // by then, the browser has given up, or somebody has stopped it
  const sending = { form: null, bar: 0, end: 0 };

  const endSending = () => {
    clearTimeout(sending.bar);
    clearTimeout(sending.end);
    document.documentElement.removeAttribute("data-sending");
    for (const el of document.querySelectorAll("form[aria-busy]")) el.removeAttribute("aria-busy");
    for (const el of document.querySelectorAll("form button[aria-disabled]")) el.removeAttribute("aria-disabled");
    sending.form = null;
  };

  document.addEventListener("submit", (e) => {
    const form = e.target;
    if (e.defaultPrevented || form.getAttribute("method") !== "post") return;
    if (sending.form) {
      e.preventDefault();
      return;
    }

    sending.form = form;
    form.setAttribute("aria-busy", "true");
    // Not disabled: that would take the focus away, and the value of the button out of the form.
    for (const el of form.querySelectorAll("button:not([type=button])")) el.setAttribute("aria-disabled", "true");
    sending.bar = setTimeout(() => document.documentElement.setAttribute("data-sending", ""), 150);
    sending.end = setTimeout(endSending, SENDING);
  });
  window.addEventListener("pageshow", endSending); // the page is shown again, from the cache of the browser

  // ---- The stream --------------------------------------------------------------------------------------------------

  const live = $("live");
  const stream = {
    heard: now(), // when the stream last said anything, or was opened
    message: now(), // when its last message came
    current: now() - (Number($("age")?.dataset.age) || 0), // the time of what the page shows
    connecting: false,
    failures: 0, // connections in a row that brought nothing
    brought: false, // this connection has brought something
    paused: sessionStorage.getItem("carillon-paused") === "1",
    over: false, // the session has ended, or nothing useful comes
    busy: false,
    retry: 0,
    request: null, // of htmx, which uses it again for each connection
    changed: false, // the page is not as it was loaded any more
  };

  // The address of the stream names what the page contains when it is loaded. The node does not send that again, so the
  // address must not say so any more when the page has changed.
  const forgetLoaded = () => {
    if (!stream.request || !stream.changed) return;
    const url = new URL(stream.request.action, location.href);
    url.searchParams.delete("have");
    stream.request.action = url.pathname + url.search;
  };

  const connect = () => {
    clearTimeout(stream.retry);
    if (!live || stream.paused || stream.over || stream.connecting || document.hidden || live._htmx?.sse) return;
    stream.connecting = true;
    stream.heard = now();
    htmx.trigger(live, "live:connect");
  };

  const connectLater = () => {
    clearTimeout(stream.retry);
    if (stream.over || stream.paused) return;
    const wait = Math.min(1000 * 2 ** stream.failures, 30_000) * (0.75 + Math.random() / 2);
    stream.retry = setTimeout(connect, wait);
  };

  const closeStream = () => live?._htmx?.sse?.reader?.cancel();

  const sessionOver = () => {
    stream.over = true;
    setAway(true);
    notice("warn", "Your session has ended, so this page is no longer kept current.", {
      href: "/ui/login?next=" + encodeURIComponent(location.pathname + location.search),
      text: "Sign in again",
    });
  };

  // The session may also end while a form asks for a preview.
  document.addEventListener("htmx:before:response", (e) => {
    const { redirected, url } = e.detail.ctx.response.raw;
    if (!redirected || new URL(url).pathname !== "/ui/login") return;
    e.preventDefault();
    notice("warn", "Your session has ended. What you have typed is kept in this tab.", {
      href: "/ui/login?next=" + encodeURIComponent(location.pathname + location.search),
      text: "Sign in again",
    });
  });

  const setupStream = () => {
    if (!live) return;

    live.addEventListener("htmx:config:request", (e) => {
      stream.request = e.detail.ctx.request;
      forgetLoaded();
    });
    live.addEventListener("htmx:sse:before:connection", (e) => {
      stream.brought = false;
      if (stream.paused || stream.over) e.preventDefault();
    });
    live.addEventListener("htmx:sse:after:connection", () => {
      stream.connecting = false;
      stream.heard = now();
    });
    live.addEventListener("htmx:sse:before:message", (e) => {
      stream.heard = stream.message = now();
      stream.brought = true;
      stream.failures = 0;
      setUnreachable(false);
      if (e.detail.message.event) return;
      stream.current = now();
      if (e.detail.message.data) {
        stream.changed = true;
        forgetLoaded();
      }
      if (!$("away")) return;
      if ($("content").hasAttribute("data-empty")) e.preventDefault(); // nothing is there to swap
      isBack();
    });
    live.addEventListener("htmx:sse:error", (e) => {
      if (e.detail.status === 401 || e.detail.status === 403) sessionOver();
    });
    live.addEventListener("htmx:sse:close", (e) => {
      stream.connecting = false;
      if (e.detail.reason !== "message" && e.detail.reason !== "removed") connectLater();
    });
    // The first answer was no stream, or did not come.
    live.addEventListener("htmx:finally:request", () => {
      stream.connecting = false;
      if (live._htmx?.sse) return;
      stream.failures++;
      connectLater();
    });
    // A proxy may answer something else again and again.
    live.addEventListener("htmx:sse:after:connection", () => {
      const before = stream.failures;
      setTimeout(() => {
        if (!stream.brought && stream.failures === before && ++stream.failures >= 4) {
          stream.over = true;
          closeStream();
          notice("warn", "This page cannot be kept current: something between the browser and the node does not pass updates on.", { href: location.href, text: "Reload" });
        }
      }, 3000);
    });

    live.addEventListener("age", (e) => {
      const ms = parseInt(e.detail.data, 10);
      if (!Number.isNaN(ms)) stream.current = now() - ms;
      showAge();
    });
    live.addEventListener("fault", (e) => {
      const fault = JSON.parse(e.detail.data);
      setAway(true);
      showAge();
      if (fault.away && $("away")) return;
      notice("warn", fault.away ? "The cluster does not answer: " + fault.message + ". You see the last known state; nothing can be changed." : fault.message, { href: location.href, text: "Reload" });
    });
    live.addEventListener("back", isBack);
    live.addEventListener("busy", () => { stream.busy = true; });
    live.addEventListener("login", sessionOver);

    for (const [target, kind] of [[document, "visibilitychange"], [window, "pageshow"]]) {
      target.addEventListener(kind, () => {
        stream.message = now(); // a hidden page has no stream
        connect();
      });
    }

    setInterval(() => {
      if (now() - stream.heard > SILENCE && !document.hidden) {
        stream.heard = now();
        closeStream(); // and htmx connects again
      }
      if (!live._htmx?.sse && !stream.connecting && now() - stream.heard > 35_000) connect();
    }, 5000);

    connect();
  };

  const showAge = () => {
    const el = $("age");
    if (!el) return;
    const age = now() - stream.current;
    const old = age >= OLD || isAway() || node.unreachable;
    const state = stream.paused ? "paused" : old ? "old" : "live";
    const text = stream.paused ? "paused, " + approximate(age) + " old" : old ? approximate(age) + " old" : stream.busy ? "every 5 seconds" : "live";
    if (el.dataset.state !== state) el.dataset.state = state;
    if (el.textContent !== text) el.textContent = text;
  };

  const setPaused = (paused) => {
    stream.paused = paused;
    sessionStorage.setItem("carillon-paused", paused ? "1" : "0");
    stream.message = now();
    showPause();
    if (paused) closeStream();
    else connect();
  };

  const showPause = () => {
    const button = $("pause");
    if (!button) return;
    button.hidden = false;
    button.setAttribute("aria-pressed", String(stream.paused));
    button.textContent = stream.paused ? "Resume updates" : "Pause updates";
    showAge();
  };

  // ---- Rows that keep their order ----------------------------------------------------------------------------------

  // A part with data-hold changes the order of its rows only on request. Rows that stay are updated, and rows that have left
  // are marked. If it also has data-flow, its order changes with time alone: it waits only while the viewer uses the rows.
  const held = new Map(); // by the id of the part: the newest content

  const rowIds = (root) => [...root.querySelectorAll("tr[id]")].map((row) => row.id);

  // A viewer uses rows who points at them, has the focus on one, or has selected some.
  const isUsed = (target) => {
    const area = target.closest(".table") ?? target;
    return area.matches(":hover") || target.contains(document.activeElement) || target.querySelector("input:checked") !== null;
  };

  const mayHold = (target) => !target.hasAttribute("data-flow") || isUsed(target);

  const holdRows = (task) => {
    const target = task.target;
    if (!(target instanceof Element) || !target.hasAttribute("data-hold") || task.swapSpec?.style !== "innerMorph") return false;

    // The node also sends the rows that have left the list, for the viewers who still see them.
    const left = new Map();
    for (const row of task.fragment.querySelectorAll("tr[data-gone]")) {
      left.set(row.id, row);
      row.remove();
    }

    const before = rowIds(target);
    const after = rowIds(task.fragment);
    if (!before.length || !mayHold(target) || (before.length === after.length && before.every((id, i) => id === after[i]))) {
      release(target);
      return false;
    }

    held.set(target.id, task.fragment.cloneNode(true));
    const now = new Map(left);
    for (const row of task.fragment.querySelectorAll("tr[id]")) now.set(row.id, row);
    for (const row of target.querySelectorAll("tr[id]")) {
      if (now.has(row.id)) replaceRow(row, now.get(row.id));
      else markLeft(row);
    }

    const known = new Set(before);
    const listed = new Set(after);
    showHeld(target, after.filter((id) => !known.has(id)).length, before.filter((id) => !listed.has(id)).length);
    return true;
  };

  // A row that changes later is also changed in what is held. It may not be on the page: then it is held, or has left.
  const updateHeld = (task) => {
    if (task.swapSpec?.style !== "outerMorph") return false;
    for (const row of task.fragment.querySelectorAll("tr[id]")) {
      for (const content of held.values()) content.querySelector("#" + CSS.escape(row.id))?.replaceWith(row.cloneNode(true));
    }
    return !(task.target instanceof Element);
  };

  // A row that is held is updated cell by cell, so that the focus stays.
  const replaceRow = (old, row) => {
    old.toggleAttribute("data-gone", row.hasAttribute("data-gone"));
    const cells = [...row.children];
    [...old.children].forEach((cell, i) => {
      const now = cells[i];
      if (!now || cell.isEqualNode(now)) return;
      cell.className = now.className;
      if (!cell.contains(document.activeElement)) cell.replaceChildren(...now.cloneNode(true).childNodes);
      else markCell(cell, now.querySelector(".left")?.textContent);
    });
  };

  // The node says nothing about this row any more: it stays as it was last, and its times do not count on.
  const markLeft = (row) => {
    if (row.hasAttribute("data-gone")) return;
    row.setAttribute("data-gone", "");
    markCell(row.querySelector("th") ?? row.firstElementChild, "no longer in this list; as it was last");
    for (const el of row.querySelectorAll("time[data-ago], time[data-left]")) {
      el.textContent = el.title;
      el.removeAttribute("data-ago");
      el.removeAttribute("data-left");
    }
  };

  const markCell = (cell, text) => {
    let mark = cell.querySelector(".left");
    if (!text) {
      mark?.remove();
      return;
    }
    if (!mark) {
      mark = document.createElement("span");
      mark.className = "sub left";
      cell.append(mark);
    }
    mark.textContent = text;
  };

  const release = (target) => {
    held.delete(target.id);
    showHeld(target, 0, 0);
  };

  const showNewest = (target) => {
    const content = held.get(target.id);
    release(target);
    if (!content) return;
    target.replaceChildren(...content.childNodes);
    htmx.process(target);
    ageTimes();
  };

  // A part that waited only while the viewer used its rows shows the newest ones afterwards.
  const releaseUnused = () => setTimeout(() => {
    for (const id of held.keys()) {
      const target = $(id);
      if (target && !mayHold(target)) showNewest(target);
    }
  });
  for (const kind of ["pointerout", "focusout", "change"]) document.addEventListener(kind, () => held.size && releaseUnused());

  const showHeld = (target, added, gone) => {
    const id = "held-" + target.id;
    let button = $(id);
    if (!held.has(target.id)) {
      button?.remove();
      return;
    }
    if (!button) {
      button = document.createElement("button");
      button.id = id;
      button.type = "button";
      button.className = "held";
      button.addEventListener("click", () => showNewest(target));
      (target.closest(".table") ?? target).before(button);
    }
    const words = [added ? added + " new" : "", gone ? gone + " gone" : "", !added && !gone ? "The order has changed" : ""].filter(Boolean).join(", ");
    button.textContent = words + " · show";
  };

  // What the viewer has opened stays open: the server does not know of it.
  const keepOpen = (task) => {
    for (const details of task.fragment.querySelectorAll("details[id]")) details.open = Boolean($(details.id)?.open);
  };

  document.addEventListener("htmx:before:swap", (e) => {
    const tasks = e.detail.tasks;
    tasks.forEach(keepOpen);
    for (let i = tasks.length - 1; i >= 0; i--) {
      if (updateHeld(tasks[i]) || holdRows(tasks[i])) tasks.splice(i, 1);
    }
  });
  document.addEventListener("htmx:after:swap", ageTimes);

  // ---- The builder -------------------------------------------------------------------------------------------------

  // A preview names the field that is wrong: it is marked in the form, too.
  const markFault = () => {
    const preview = $("preview");
    if (!preview) return;
    const field = preview.querySelector("[data-fault]")?.dataset.fault ?? "";
    for (const el of document.querySelectorAll("#form-fields [name]:not([type=hidden])")) {
      if (field === el.name || field.startsWith(el.name + ".") || field.startsWith(el.name + "[")) el.setAttribute("aria-invalid", "true");
      else el.removeAttribute("aria-invalid");
    }
  };
  document.addEventListener("htmx:after:swap", markFault);

  // ---- Keys --------------------------------------------------------------------------------------------------------

  const keysOn = () => localStorage.getItem("carillon-keys") !== "0";
  let prefix = 0; // when g was pressed

  // The main link of a row is marked. The row as a whole leads where that link leads.
  const mainLink = (row) => row.querySelector("a[data-open]") ?? row.querySelector("a[href]");

  document.addEventListener("click", (e) => {
    const link = e.target instanceof Element ? e.target.closest("tbody tr")?.querySelector("a[data-open]") : null;
    if (!link || e.button !== 0 || e.defaultPrevented || getSelection().type === "Range") return;
    if (e.target.closest("a, button, input, label, select, summary, .select, .pick")) return;
    link.dispatchEvent(new MouseEvent("click", e));
  });

  const rows = () => [...document.querySelectorAll("main tbody tr, main .plain li, main .trouble li, main .graph ul li")].filter((row) => row.querySelector("a[href]"));

  const moveRow = (step) => {
    const list = rows();
    if (!list.length) return;
    const at = list.findIndex((row) => row.contains(document.activeElement));
    const next = list[Math.min(Math.max(at + step, 0), list.length - 1)];
    mainLink(next).focus();
  };

  // In a graph, left and right lead to the next column, up and down within one.
  const moveInGraph = (e) => {
    const [across, along] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key] ?? [0, 0];
    const graph = document.activeElement?.closest(".graph");
    if (!graph || (!across && !along)) return;
    const columns = [...graph.children].map((column) => [...column.querySelectorAll("a[data-open]")]).filter((links) => links.length);
    const x = columns.findIndex((links) => links.includes(document.activeElement));
    if (x < 0) return;
    const y = columns[x].indexOf(document.activeElement);
    const links = columns[x + across] ?? columns[x];
    const link = links[Math.min(Math.max(y + along, 0), links.length - 1)];
    link.focus();
    e.preventDefault();
  };

  const search = () => {
    const field = document.querySelector("main input[type=search]");
    field?.focus();
    field?.select();
    return !!field;
  };

  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return;
    if (e.key === "Escape") {
      for (const menu of document.querySelectorAll("details.menu[open]")) {
        menu.open = false;
        menu.querySelector("summary").focus();
      }
      return;
    }
    const at = e.target;
    if (!keysOn() || at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName) || $("keys")?.open) return;

    if (prefix && now() - prefix < 1500) {
      prefix = 0;
      const link = document.querySelector("nav a[data-go='" + CSS.escape(e.key) + "']");
      if (link) {
        e.preventDefault();
        link.click();
      }
      return;
    }
    moveInGraph(e);
    const handlers = {
      g: () => { prefix = now(); },
      j: () => moveRow(1),
      k: () => moveRow(-1),
      "/": search,
      p: () => live && setPaused(!stream.paused),
      "?": () => $("keys")?.showModal(),
    };
    if (Object.hasOwn(handlers, e.key)) {
      e.preventDefault();
      handlers[e.key]();
    }
  });

  // ---- Login links -------------------------------------------------------------------------------------------------

  // The secret of a login link is in the fragment of the address, which browsers do not send. It must not stay in the history.
  const postLink = () => {
    const form = $("login-link");
    const secret = location.hash.slice(1);
    if (!form || !secret) return;
    history.replaceState(null, "", location.pathname);
    form.elements.link.value = secret;
    form.requestSubmit();
  };

  // ---- The page ----------------------------------------------------------------------------------------------------

  document.addEventListener("click", (e) => {
    const copy = e.target.closest("[data-copy]");
    if (copy) {
      navigator.clipboard?.writeText($(copy.dataset.copy).textContent).then(() => {
        copy.textContent = "Copied";
        setTimeout(() => { copy.textContent = "Copy"; }, 2000);
      });
    }
    if (e.target.closest("[data-keys]")) $("keys")?.showModal();
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(e.target)) menu.open = false;
    }
  });

  const setup = () => {
    // The answer to a form has the address of its action, which is no page: it cannot be loaded again, or sent to others.
    const at = $("content")?.dataset.at;
    if (at) history.replaceState(history.state, "", at);

    for (const el of document.querySelectorAll("[data-keys]")) el.hidden = false;
    if (navigator.clipboard) for (const el of document.querySelectorAll("[data-copy]")) el.hidden = false;

    const zones = $("zones");
    const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (zones && own && own !== "UTC") {
      const option = document.createElement("option");
      option.value = own;
      option.label = "this browser";
      zones.append(option);
    }

    const box = $("keys-on");
    if (box) {
      box.checked = keysOn();
      box.addEventListener("change", () => localStorage.setItem("carillon-keys", box.checked ? "1" : "0"));
    }

    $("pause")?.addEventListener("click", () => setPaused(!stream.paused));
    showPause();
    postLink();
    ageTimes();
    setInterval(() => {
      ageTimes();
      showAge();
      checkNode();
    }, 1000);
    // htmx initializes itself after this script.
    setTimeout(setupStream);
  };

  setup();
})();
