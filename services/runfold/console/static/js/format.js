/** Numbers and times as readers write them. */

const INTEGER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const FULL = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });

/** Stands for a value that is not there. */
export const NOTHING = "–";

/** 12,345 */
export function integer(number) {
  return number === null || number === undefined ? NOTHING : INTEGER.format(number);
}

/** 12.3K */
export function compact(number) {
  return number === null || number === undefined ? NOTHING : COMPACT.format(number);
}

/** 350 ms, 2.4 s, 3 min 05 s, 2 h 10 min, 3 d 4 h */
export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined || Number.isNaN(milliseconds)) return NOTHING;
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const two = (value) => String(value).padStart(2, "0");
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** 310 ms, 4.2 s, 2:57, 1:02:57: short, for a column */
export function elapsed(milliseconds) {
  if (milliseconds < 59_950) return duration(milliseconds);
  const seconds = Math.round(milliseconds / 1000);
  const two = (value) => String(value).padStart(2, "0");
  const minutes = Math.floor(seconds / 60);
  const rest = two(seconds % 60);
  return minutes < 60 ? `${minutes}:${rest}` : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${rest}`;
}

/** 14:05:31 today, 3 Nov 14:05:31 otherwise */
export function time(value) {
  if (value === null || value === undefined) return NOTHING;
  const date = new Date(value);
  const clock = TIME.format(date);
  return date.toDateString() === new Date().toDateString() ? clock : `${DAY.format(date)} ${clock}`;
}

/** The whole time with its zone, for titles. */
export function fullTime(value) {
  return value === null || value === undefined ? "" : FULL.format(new Date(value));
}

/** 5 s ago, 3 min ago */
export function ago(value, now = Date.now()) {
  if (value === null || value === undefined) return NOTHING;
  const seconds = Math.max(0, (now - new Date(value).getTime()) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

/** $0.0123, with as many digits as a small amount needs */
export function money(amount, currency) {
  if (amount === null || amount === undefined) return NOTHING;
  const digits = amount >= 1 || amount === 0 ? 2 : Math.min(6, 2 - Math.floor(Math.log10(amount)));
  const options = { style: "currency", currency: currency || "USD", maximumFractionDigits: digits };
  return new Intl.NumberFormat("en", { ...options, minimumFractionDigits: 2 }).format(amount);
}

/** The first line of a text, shortened. */
export function firstLine(text, length = 200) {
  const line = String(text).trimStart().split("\n", 1)[0];
  return line.length > length ? `${line.slice(0, length)}…` : line;
}

/** 1.2 KB */
export function bytes(number) {
  if (number < 1000) return `${number} B`;
  const [unit, size] = [["KB", 1e3], ["MB", 1e6], ["GB", 1e9]].findLast(([, size]) => number >= size);
  return `${(number / size).toFixed(1)} ${unit}`;
}
