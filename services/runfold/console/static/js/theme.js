/** The theme: that of the system, or the reader's own choice, which the browser keeps. */

const KEY = "runfold.theme";

/** @returns {"light" | "dark"} the theme that the page has now */
export function shownTheme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen === "light" || chosen === "dark") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Changes to the other theme. */
export function switchTheme() {
  const theme = shownTheme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Without storage, the choice lasts as long as the page.
  }
}
