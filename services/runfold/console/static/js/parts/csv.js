/** Tables as CSV (RFC 4180), which spreadsheets open without running anything. */

const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/;

/**
 * @param {string[]} titles
 * @param {any[][]} rows
 * @returns {string}
 */
export function asCsv(titles, rows) {
  return [titles, ...rows].map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

/** A text that a spreadsheet would read as a formula begins with an apostrophe instead. */
function field(value) {
  if (typeof value === "number") return String(value);
  const text = String(value ?? "");
  const harmless = FORMULA.test(text) ? `'${text}` : text;
  return `"${harmless.replaceAll('"', '""')}"`;
}
