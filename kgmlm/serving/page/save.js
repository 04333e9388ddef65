// What is shown, as a file.

import { el } from "./dom.js";

const COLUMNS = ["rank", "entity", "name", "probability", "score", "known", "types", "description"];

const cell = (value) => {
  const text = Array.isArray(value) ? value.join("|") : String(value ?? "");
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
