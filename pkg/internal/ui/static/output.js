// The output of a run, as it is written. The page's stream brings lines; this script shows the newest ones and forgets the
// others, so that the page stays small however much a run writes. It shows texts only as text.
(() => {
  "use strict";

  const box = document.getElementById("output");
  const live = document.getElementById("live");
  if (!box || !live) return;

  const MAX_LINES = 2000;
  const MAX_TEXT = 1_500_000; // characters

  const note = document.getElementById("output-note");
  const followButton = document.getElementById("follow");
  const find = document.getElementById("find");
  const found = document.getElementById("found");

  let lines = []; // what is shown: {at, next, text, open, el}
  let size = 0; // characters of their texts
  let attempt = -1;
  let id = ""; // of the newest message: the stream goes on from there
  let gone = 0; // bytes that are no longer shown, or never were
  let unstored = -1; // bytes before the last lines that the node has not stored; -1: it has stored all
  let following = true;
  let fresh = true; // the box still shows what the server has put there

  const bytes = (n) => {
    if (n < 1024) return n + " B";
    let i = -1;
    do { n /= 1024; i++; } while (n >= 1024 && i < 4);
    return n.toFixed(1) + " " + "KMGTP"[i] + "iB";
  };

  // ---- Search ------------------------------------------------------------------------------------------------------

  let query = "";

  // fill writes a line, with what is searched marked.
  const fill = (line) => {
    const x = line.el.lastElementChild;
    const nodes = [];
    let hit = false;
    if (query) {
      const low = line.text.toLowerCase();
      let from = 0;
      for (let at = low.indexOf(query); at >= 0 && nodes.length < 200; at = low.indexOf(query, from)) {
        const mark = document.createElement("mark");
        mark.textContent = line.text.slice(at, at + query.length);
        nodes.push(line.text.slice(from, at), mark);
        from = at + query.length;
        hit = true;
      }
      nodes.push(line.text.slice(from));
    } else {
      nodes.push(line.text);
    }
    if (line.cut) {
      const cut = document.createElement("span");
      cut.className = "cut";
      cut.textContent = " … " + bytes(line.cut) + " more in the raw output";
      nodes.push(cut);
    }
    x.replaceChildren(...nodes);
    line.hit = hit;
  };

  const showFound = () => {
    const n = query ? lines.filter((l) => l.hit).length : 0;
    const text = query ? n + (n === 1 ? " line" : " lines") + " of " + lines.length + " shown" : "";
    if (found.textContent !== text) found.textContent = text;
  };

  let current = null;
  const jump = (step) => {
    const hits = lines.filter((l) => l.hit);
    if (!hits.length) return;
    const at = hits.indexOf(current);
    current = hits[(at < 0 ? (step > 0 ? 0 : hits.length - 1) : at + step + hits.length) % hits.length];
    setFollowing(false);
    current.el.scrollIntoView({ block: "center" });
    for (const l of hits) l.el.classList.toggle("at", l === current);
  };

  find.hidden = false;
  let typing = 0;
  find.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      query = find.value.toLowerCase();
      current = null;
      for (const l of lines) fill(l);
      showFound();
    }, 120);
  });
  find.addEventListener("keydown", (e) => {
    if (e.key === "Enter") {
      e.preventDefault();
      jump(e.shiftKey ? -1 : 1);
    }
  });

  // ---- Lines -------------------------------------------------------------------------------------------------------

  const clear = () => {
    lines = [];
    size = gone = 0;
    unstored = -1;
    fresh = false;
    box.replaceChildren();
  };

  const remark = (text) => {
    const el = document.createElement("p");
    el.className = "none";
    el.textContent = text;
    return el;
  };

  const newLine = (l) => {
    const el = document.createElement("div");
    el.className = l.err ? "line err" : "line";
    if (l.time) {
      const t = document.createElement("span");
      t.className = "t";
      t.textContent = l.time;
      el.append(t);
    }
    if (l.err) {
      const s = document.createElement("span");
      s.className = "sr";
      s.textContent = "standard error: ";
      el.append(s);
    }
    const x = document.createElement("span");
    x.className = "x";
    el.append(x);
    return { ...l, el };
  };

  const trim = () => {
    while (lines.length > MAX_LINES || (size > MAX_TEXT && lines.length > 1)) {
      const old = lines.shift();
      size -= old.text.length;
      while (box.firstChild && box.firstChild !== old.el) box.firstChild.remove();
      old.el.remove();
    }
    gone = lines.length ? lines[0].at : gone;
  };

  const showNote = () => {
    const words = [];
    if (gone > 0) words.push(bytes(gone) + " before this are not shown here; the raw output has them.");
    if (unstored > 0) words.push(bytes(unstored) + " before the last lines were not kept.");
    const text = words.join(" ");
    if (note.textContent !== text) note.textContent = text;
  };

  // The places of last lines from the record of a run do not follow those of the lines before them.
  const add = (list, unordered = false) => {
    const added = document.createDocumentFragment();
    for (const l of list) {
      const last = lines[lines.length - 1];
      if (last && l.at === last.at && last.open && !unordered) {
        size += l.text.length - last.text.length;
        Object.assign(last, { text: l.text, cut: l.cut, open: l.open, next: l.next });
        fill(last);
        continue;
      }
      if (last && l.at < last.next && !unordered) continue;
      if (last && l.at > last.next && !unordered) added.append(remark("… " + bytes(l.at - last.next) + " left out: the run writes faster than a page can show …"));

      const line = newLine(l);
      fill(line);
      lines.push(line);
      size += line.text.length;
      added.append(line.el);
    }
    box.append(added);
    trim();
  };

  // What the node has stored ends in the middle of the run: the last lines follow from the record of the run.
  const addLast = (m) => {
    if (unstored >= 0) return; // the page has them from the connection before
    unstored = m.lost ?? 0;
    if (unstored > 0) box.append(remark("… " + bytes(unstored) + " were not kept …"));
    add(m.lines, true);
  };

  live.addEventListener("output", (e) => {
    const m = JSON.parse(e.detail.data);
    if (e.detail.id) id = e.detail.id;
    if (m.problem) {
      if (box.querySelector(".line")) note.textContent = m.problem; // the end of the output, from the record of the run
      else box.replaceChildren(remark(m.problem));
      return;
    }
    if (fresh || m.attempt !== attempt) {
      clear();
      if (attempt > 0) box.append(remark("Attempt " + m.attempt));
      attempt = m.attempt;
    }
    box.classList.toggle("growing", !m.ended);
    if (m.last) addLast(m);
    else if (m.lines) add(m.lines);
    if (m.ended && !lines.length) box.replaceChildren(remark("It has written nothing."));
    followButton.hidden = !!m.ended;
    if (m.kept === undefined) showNote();
    else note.textContent = m.kept;
    if (query) showFound();
    if (following) box.scrollTop = box.scrollHeight;
  });

  // A node with too many viewers lets pages ask again and again, and then sends no output.
  live.addEventListener("busy", () => {
    if (!lines.length) box.replaceChildren(remark("This node serves many viewers at the moment, so it does not send the output. Open it raw."));
    fresh = true;
  });

  // A new connection goes on where the last one has ended.
  live.addEventListener("htmx:config:request", (e) => {
    if (id) e.detail.ctx.request.headers["Last-Event-ID"] = id;
  });

  // ---- Following ---------------------------------------------------------------------------------------------------

  const setFollowing = (on) => {
    following = on;
    followButton.setAttribute("aria-pressed", String(on));
    if (on) box.scrollTop = box.scrollHeight;
  };

  followButton.hidden = false;
  followButton.addEventListener("click", () => setFollowing(!following));
  // Whoever scrolls up reads; at the end, it follows again.
  for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"]) {
    box.addEventListener(kind, () => setTimeout(() => {
      const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
      if (atEnd !== following) setFollowing(atEnd);
    }, 50), { passive: true });
  }
  box.scrollTop = box.scrollHeight;

  // ---- Switches ----------------------------------------------------------------------------------------------------

  // Each switch has the value of its parameter that differs from what the page does without it.
  for (const [name, on, value] of [["wrap", false, "0"], ["times", true, "1"]]) {
    const link = document.getElementById(name);
    link.addEventListener("click", (e) => {
      if (e.ctrlKey || e.metaKey || e.shiftKey) return;
      e.preventDefault();
      const set = box.classList.toggle(name);
      link.toggleAttribute("aria-current", false);
      if (set) link.setAttribute("aria-current", "true");
      const url = new URL(location.href);
      if (set === on) url.searchParams.set(name, value);
      else url.searchParams.delete(name);
      history.replaceState(history.state, "", url);
      if (following) box.scrollTop = box.scrollHeight;
    });
  }
})();
