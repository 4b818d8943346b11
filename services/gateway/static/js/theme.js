// Light, dark, or as the system has it.

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const STORED = "slackwater.theme";

export function setUpTheme(button, onChange) {
  const root = document.documentElement;
  const show = () => {
    button.textContent = `Theme: ${root.dataset.theme ?? "auto"}`;
  };
  button.addEventListener("click", () => {
    const theme = NEXT[root.dataset.theme ?? "auto"];
    if (theme === "auto") {
      delete root.dataset.theme;
      localStorage.removeItem(STORED);
    } else {
      root.dataset.theme = theme;
      localStorage.setItem(STORED, theme);
    }
    show();
    onChange();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  show();
}

// What a colour variable of the style sheet is now, as canvases take it.
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
