// Elements out of data. Names and descriptions come from graphs: they become text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const el = (tag, properties, ...children) => filled(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) =>
  filled(document.createElementNS(SVG, tag), properties, children);

// A name from the graph, set apart from the direction of the text around it.
export const name = (text) => el("bdi", {}, text);

export const byId = (id) => document.getElementById(id);

export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter(Boolean));
  return element;
}

let spoken;
// Said by screen readers, shown nowhere.
export function say(sentence) {
  clearTimeout(spoken);
  spoken = setTimeout(() => (byId("said").textContent = sentence), 250);
}
