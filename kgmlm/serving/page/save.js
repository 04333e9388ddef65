// What is shown, as a file.

import { el } from "./dom.js";

const COLUMNS = ["rank", "entity", "name", "probability", "score", "known", "types", "description"];

// A spreadsheet takes a text that begins so for a formula, unless an apostrophe comes first.
const formula = /^[=+\-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20]/;
const number = /^[+-]?\d+(\.\d*)?([eE][+-]?\d+)?$/;

const cell = (value) => {
  const plain = Array.isArray(value) ? value.join("|") : String(value ?? "");
  const text = typeof value !== "number" && formula.test(plain) && !number.test(plain) ? `'${plain}` : plain;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

export function save(kind, found, rows) {
  const [head, tail] = found.target === "tail" ? [found.entity.label, null] : [null, found.entity.label];
  const asked = { head, relation: found.relation.label, tail };
  const text =
    kind === "csv"
      ? [COLUMNS, ...rows.map((row) => COLUMNS.map((column) => row[column]))]
          .map((line) => line.map(cell).join(","))
          .join("\r\n") + "\r\n"
      : JSON.stringify({ ...asked, page: location.href, predictions: rows }, null, 1);
  const type = kind === "csv" ? "text/csv;charset=utf-8" : "application/json";
  const href = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href, download: `answers.${kind}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}
