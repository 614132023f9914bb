// The search of the manual. It needs no server: search.js, which is loaded when somebody searches, contains the text of
// all pages and calls searchManual with it.
"use strict";

(() => {
  const root = document.documentElement.dataset.root;
  const form = document.getElementById("search");
  const query = document.getElementById("query");
  const results = document.getElementById("results");
  const list = results.querySelector("ol");
  const found = document.getElementById("found");
  const most = 20;
  let sections;

  window.searchManual = (all) => {
    sections = all.map(([address, title, heading, text]) => ({ address, title, heading, text }));
    show();
  };

  function load() {
    if (sections || document.getElementById("index")) return;
    const script = document.createElement("script");
    script.id = "index";
    script.src = root + "search.js";
    document.head.append(script);
  }

  // pattern returns what finds a word where one begins: "is" is not in "missed", but in "is" and "isolated".
  const pattern = (...words) => new RegExp("(?<![\\p{L}\\p{N}])(" + words.map((word) => word.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")).join("|") + ")", "giu");

  // A section matches if it contains all words. Words in headings count more than words in the text.
  function score(section, patterns) {
    let sum = 0;
    for (const word of patterns) {
      const points = (section.heading.search(word) >= 0 ? 15 : section.title.search(word) >= 0 ? 10 : 0) + (section.text.search(word) >= 0 ? 1 : 0);
      if (points === 0) return 0;
      sum += points;
    }
    return sum;
  }

  // excerpt returns the text around the first of the words, with all of them marked.
  function excerpt(section, words) {
    const span = document.createElement("span");
    const first = Math.max(section.text.search(pattern(...words)), 0);
    const from = first < 60 ? 0 : section.text.indexOf(" ", first - 60) + 1;

    section.text.slice(from, from + 180).split(pattern(...words)).forEach((part, i) => {
      const mark = document.createElement("mark");
      mark.textContent = part;
      span.append(i % 2 === 1 ? mark : part);
    });
    return span;
  }

  function show() {
    const words = query.value.split(/\s+/).filter(Boolean);
    results.hidden = words.length === 0;
    list.replaceChildren();
    if (words.length === 0) return;
    if (!sections) {
      found.textContent = "Loading…";
      return;
    }

    const patterns = words.map((word) => pattern(word));
    const hits = sections.map((section) => ({ section, score: score(section, patterns) })).filter((hit) => hit.score > 0).sort((a, b) => b.score - a.score);
    found.textContent = hits.length === 0 ? "Nothing found" : hits.length > most ? `The best ${most} of ${hits.length} sections` : hits.length === 1 ? "1 section" : `${hits.length} sections`;
    for (const { section } of hits.slice(0, most)) {
      const link = document.createElement("a");
      link.href = root + section.address;
      link.append(section.heading === section.title ? section.title : `${section.title} › ${section.heading}`, excerpt(section, words));
      link.addEventListener("click", close);
      const item = document.createElement("li");
      item.append(link);
      list.append(item);
    }
  }

  function close() {
    query.value = "";
    show();
  }

  form.hidden = false;
  query.addEventListener("focus", load);
  query.addEventListener("input", () => { load(); show(); });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("a")?.click();
  });

  // "/" begins a search. The arrows move through the results, and Escape ends the search.
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== query && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      query.focus();
    } else if (event.key === "Escape" && !results.hidden) {
      close();
      query.focus();
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !results.hidden) {
      const stops = [query, ...list.querySelectorAll("a")];
      const at = stops.indexOf(document.activeElement);
      const next = stops[at + (event.key === "ArrowDown" ? 1 : -1)];
      if (at >= 0 && next) {
        event.preventDefault();
        next.focus();
      }
    }
  });
})();
