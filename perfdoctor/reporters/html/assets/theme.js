// Light and dark: as the system says, until the reader chooses.

const themeListeners = [];
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const THEME_KEY = "perfdoctor-theme";

/** Call `listener` with the palette now and whenever it changes. */
function onTheme(listener) {
  themeListeners.push(listener);
  listener(currentPalette());
}

const currentPalette = (() => {
  let palette = null, key = null;
  return () => {
    const now = isDark();
    if (key !== now || palette === null) [palette, key] = [new Palette(), now];
    return palette;
  };
})();

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : systemIsDark.matches;
}

/** The theme that the reader chose before; a browser may forbid pages from disk to remember anything. */
function recallTheme() {
  const remembered = tryStorage((storage) => storage.getItem(THEME_KEY));
  if (remembered === "dark" || remembered === "light") document.documentElement.dataset.theme = remembered;
}

function startTheme() {
  document.getElementById("theme").addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    tryStorage((storage) => storage.setItem(THEME_KEY, theme));
    changeTheme();
  });
  systemIsDark.addEventListener("change", changeTheme);
  changeTheme();
}

/** Draw everything in the colours of now, and offer the others. */
function changeTheme() {
  const button = document.getElementById("theme"), other = isDark() ? "Light" : "Dark";
  button.textContent = other;
  button.setAttribute("aria-label", `${other} colours`);
  for (const listener of themeListeners) listener(currentPalette());
}

function tryStorage(use) {
  try {
    return use(localStorage);
  } catch {
    return null;
  }
}
