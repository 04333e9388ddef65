// A text field with a list of what it may mean, by the ARIA pattern for comboboxes.

import { el, fill, name, say } from "./dom.js";

let made = 0;
let moving = false;

// Moves elements without their lists opening.
export function silently(move) {
  moving = true;
  move();
  moving = false;
}

// `find(text)` resolves to options {value, text, note, mark}; `choose(option)` is called with the chosen one.
// `also(text)` is a last option of what was typed.
export function combobox({ label, placeholder = "", find, choose, also = () => null, pause = 120 }) {
  const id = `list-${++made}`;
  const list = el("ul", { id, role: "listbox", "aria-label": label, hidden: true });
  const input = el("input", {
    type: "text",
    role: "combobox",
    dir: "auto",
    "aria-label": label,
    "aria-expanded": "false",
    "aria-controls": id,
    "aria-autocomplete": "list",
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    maxlength: 1000,
    placeholder,
  });
  const box = el("span", { class: "combobox" }, input, list);
  let options = [];
  let active = -1;
  let stale = false; // what is shown was found for another text
  let of = ""; // the text that the options are for
  let shown = "";
  let timer;
  let turn = 0;

  const resize = () => input.style.setProperty("--letters", String((input.value || placeholder).length));

  function mark(at) {
    active = at;
    for (const item of list.children) {
      const isActive = item.id === `${id}-${active}`;
      item.setAttribute("aria-selected", String(isActive));
      if (isActive) item.scrollIntoView({ block: "nearest" });
    }
    if (active < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", `${id}-${active}`);
  }

  function close() {
    turn += 1;
    clearTimeout(timer);
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    mark(-1);
  }

  function take(option) {
    close();
    set(option.keep ?? option.text);
    choose(option);
  }

  function show(matches, text) {
    const isThere = matches.some((option) => option.text.toLowerCase() === text.toLowerCase());
    const last = text && !isThere ? also(text) : null;
    const found = last ? [...matches, last] : matches;
    options = found;
    of = text;
    stale = false;
    list.removeAttribute("aria-busy");
    fill(
      list,
      text && !matches.length && el("li", { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "none" }, "No match."),
      found.map((option, i) =>
        el(
          "li",
          {
            id: `${id}-${i}`,
            role: "option",
            "aria-selected": "false",
            onmousedown: (event) => event.preventDefault(), // the field keeps the focus
            onclick: () => take(option),
          },
          el("span", { class: "option-text" }, name(option.text)),
          option.mark && el("span", { class: "option-mark" }, option.mark),
          option.note && el("span", { class: "option-note" }, name(option.note)),
        ),
      ),
    );
    const any = found.length > 0 || text !== "";
    list.hidden = !any;
    input.setAttribute("aria-expanded", String(any));
    list.scrollTop = 0;
    mark(-1);
    if (any) say(matches.length ? `${matches.length} suggestions` : "No match.");
  }

  async function open(text) {
    const mine = ++turn;
    const found = await find(text).catch(() => []);
    if (mine === turn && document.activeElement === input) show(found, text);
  }

  function set(text) {
    shown = text;
    input.value = text;
    resize();
  }

  input.addEventListener("input", () => {
    resize();
    clearTimeout(timer);
    stale = true;
    list.setAttribute("aria-busy", "true"); // what it shows is of what was typed before
    turn += 1; // what is being looked for is not it any more
    if (!of || list.hidden) close();
    mark(-1);
    timer = setTimeout(() => open(input.value.trim()), pause);
  });
  input.addEventListener("focus", () => {
    input.select();
    if (!moving) open("");
  });
  input.addEventListener("click", () => list.hidden && open(""));
  input.addEventListener("blur", () => {
    close();
    set(shown);
  });
  input.addEventListener("keydown", (event) => {
    const isOpen = !list.hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!isOpen) open("");
      else if (!options.length || stale) return;
      else if (event.key === "ArrowDown") mark((active + 1) % options.length);
      else mark((active < 1 ? options.length : active) - 1);
    } else if (event.key === "Enter") {
      event.preventDefault();
      const typed = input.value !== shown && !stale;
      if (isOpen && options.length && (active >= 0 || typed)) take(options[Math.max(active, 0)]);
      else if (input.value.trim()) open(input.value.trim());
    } else if (event.key === "Escape") {
      if (isOpen) event.preventDefault();
      close();
      set(shown);
    }
  });
  return { box, input, set };
}
