// Drafts: what somebody has typed into the forms of a task is kept in this tab until it is saved or discarded, so that going
// back, a reload and a new login do not lose it. A draft belongs to the address of its page and to the subject that has typed
// it. Values that look like secrets are not kept.
(() => {
  "use strict";

  const PREFIX = "carillon-draft:";
  const page = document.querySelector("[data-draft-of]");

  const read = (key) => {
    try {
      return JSON.parse(sessionStorage.getItem(key));
    } catch {
      return null;
    }
  };
  const write = (key, draft) => {
    try {
      sessionStorage.setItem(key, JSON.stringify(draft));
    } catch {
      // There is no space, or the browser allows no storage. Leaving the page asks first.
    }
  };
  const keys = () => Object.keys(sessionStorage).filter((key) => key.startsWith(PREFIX));
  const isLogout = (form) => form.matches("[action='/ui/logout']");

  // ---- Values that look like secrets ---------------------------------------------------------------------------------

  // A line is kept up to its first value that looks like a secret. References to secrets, such as secret:NAME/KEY, are none.
  const MARK = "\u0000";
  const NAMED = /(?:auth|token|secret|passw|pwd|credential|cookie|private|api-?_?key|[-_]key|\bkey)[\w.-]*["']?\s*[:=]\s*(?=\S)/gi;
  const IN_URL = /:\/\/[^\s/:@]*:(?=[^\s/@]+@)/g;
  const REFERENCE = /^["']?(?:Bearer |Basic )?(?:\$\{)?secret:[\w.-]+\//i;

  const hideLine = (line) => {
    for (const pattern of [NAMED, IN_URL]) {
      for (const match of line.matchAll(pattern)) {
        const end = match.index + match[0].length;
        if (!REFERENCE.test(line.slice(end)) && !REFERENCE.test(line.slice(match.index))) return line.slice(0, end) + MARK;
      }
    }
    return line;
  };
  const hideSecrets = (text) => text.split("\n").map(hideLine).join("\n");

  // The page may contain the whole line, because the stored task does. The others are without their values.
  const showSecrets = (text, known) => {
    const lines = known.split("\n");
    let missing = 0;
    const whole = text.split("\n").map((line) => {
      if (!line.endsWith(MARK)) return line;
      const begin = line.slice(0, -1);
      const found = lines.find((other) => other.startsWith(begin));
      if (found === undefined) missing++;
      return found ?? begin;
    });
    return { text: whole.join("\n"), missing };
  };

  // ---- Drafts that are done with -------------------------------------------------------------------------------------

  // A page that says what was done follows a form that was saved.
  if (document.querySelector("[data-done]")) {
    for (const key of keys()) if (read(key)?.sent) sessionStorage.removeItem(key);
  }
  const forgetAll = () => keys().forEach((key) => sessionStorage.removeItem(key));
  if (!page) {
    document.addEventListener("submit", (e) => isLogout(e.target) && forgetAll());
    return;
  }

  // ---- The draft of this page ----------------------------------------------------------------------------------------

  const forms = [...page.querySelectorAll("form")];
  const key = PREFIX + forms[0].elements.at.value;
  const subject = page.dataset.draftOf;
  const bar = document.getElementById("draft");
  let dirty = false; // what was typed since the page was loaded is not saved

  // Hidden fields are not what somebody has typed, but for the version of the task that the form began with.
  const fields = () => {
    const all = new Map();
    for (const form of forms) {
      for (const el of form.elements) {
        if (!el.name || el.tagName === "BUTTON" || el.type === "password" || (el.type === "hidden" && el.name !== "revision")) continue;
        all.set(form.id + "." + el.name, el);
      }
    }
    return all;
  };
  const maySecret = (name) => /\.(?:yaml|base|action\..*)$/.test(name);
  const values = () => Object.fromEntries([...fields()].map(([name, el]) => [name, maySecret(name) ? hideSecrets(el.value) : el.value]));

  let from = forms[0].id; // the form that was typed into last
  const keep = (sent) => write(key, { subject, from, sent, values: values() });

  const forget = () => {
    dirty = false;
    sessionStorage.removeItem(key);
  };

  const say = (text) => {
    const discard = document.createElement("button");
    discard.type = "button";
    discard.className = "link";
    discard.textContent = "Discard";
    discard.addEventListener("click", () => {
      forget();
      location.replace(forms[0].elements.at.value);
    });
    bar.replaceChildren(text + " · ", discard);
    bar.hidden = false;
  };

  // What the page has without the draft. The browser may have restored some fields by itself.
  const loadedValue = (el) => el.options ? ([...el.options].find((o) => o.defaultSelected) ?? el.options[0])?.value : el.defaultValue;

  const restore = (draft) => {
    let changed = false;
    let missing = 0;
    for (const [name, el] of fields()) {
      const value = draft.values[name];
      if (value === undefined) continue;
      const loaded = loadedValue(el);
      const shown = showSecrets(value, loaded);
      missing += shown.missing;
      changed ||= !el.hidden && el.type !== "hidden" && shown.text !== loaded;
      el.value = shown.text;
    }
    if (!changed) {
      forget();
      return;
    }
    say(missing ? "Restored what you typed, without values that look like secrets: enter these again" : "Restored what you typed");
    from = draft.from;
    keep(false);
    // The preview and the other form follow.
    document.getElementById(from)?.dispatchEvent(new Event("input", { bubbles: true }));
  };

  const typed = (e) => {
    if (e.target === e.currentTarget) return; // restore has sent it
    from = e.currentTarget.id;
    dirty = true;
    keep(false);
  };

  for (const form of forms) form.addEventListener("input", typed);
  document.addEventListener("submit", (e) => {
    if (e.defaultPrevented) return;
    if (isLogout(e.target)) {
      dirty = false;
      forgetAll();
    } else if (forms.includes(e.target)) {
      dirty = false;
      keep(true);
    }
  });
  document.addEventListener("click", (e) => e.target.closest("[data-discard]") && forget());
  window.addEventListener("beforeunload", (e) => {
    if (dirty) e.preventDefault();
  });
  window.addEventListener("pagehide", () => {
    if (dirty) keep(false); // the other form may have followed since
  });

  const setup = () => {
    const draft = read(key);
    if ("posted" in page.dataset) keep(false); // the page shows what was sent
    else if (draft?.subject === subject) restore(draft);
    else if (draft) forget();
  };
  // htmx initializes itself after the scripts.
  setTimeout(setup);
})();
