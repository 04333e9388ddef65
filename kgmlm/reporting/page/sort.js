for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const body = head.closest("table").tBodies[0];
    const down = head.ariaSort !== "descending";
    const value = (row) => {
      const cell = row.cells[head.cellIndex];
      return cell.dataset.key === undefined ? cell.textContent.trim() : Number(cell.dataset.key);
    };
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (typeof x === typeof y) return typeof x === "number" ? x - y : x.localeCompare(y);
      return typeof x === "number" ? 1 : -1; // a dash is less than any number
    };
    const rows = [...body.rows].sort(order);
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...(down ? rows.reverse() : rows));
  });
}
