// What is shown, as a file.

import { el } from "./dom.js";

const COLUMNS = ["rank", "entity", "name", "probability", "score", "known", "in_test", "types", "description"];

// A spreadsheet takes a text that begins so for a formula, unless an apostrophe comes first.
const formula = /^[=+\-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20]/;
const number = /^[+-]?\d+(\.\d*)?([eE][+-]?\d+)?$/;

const cell = (value) => {
  const plain = Array.isArray(value) ? value.join("|") : String(value ?? "");
  const text = typeof value !== "number" && formula.test(plain) && !number.test(plain) ? `'${plain}` : plain;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

function offer(file, text, type) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

// A table as CSV.
export function download(file, columns, rows) {
  const lines = [columns, ...rows].map((line) => line.map(cell).join(",")).join("\r\n");
  offer(file, `${lines}\r\n`, "text/csv;charset=utf-8");
}

export function save(kind, found, rows) {
  const [head, tail] = found.target === "tail" ? [found.entity.label, null] : [null, found.entity.label];
  if (kind === "csv") {
    download("answers.csv", COLUMNS, rows.map((row) => COLUMNS.map((column) => row[column])));
    return;
  }
  const asked = { head, relation: found.relation.label, tail };
  offer("answers.json", JSON.stringify({ ...asked, page: location.href, predictions: rows }, null, 1), "application/json");
}
