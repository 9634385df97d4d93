// The theme before the first paint: modules run too late for that. theme.js keeps it from then on.

try {
  const mode = localStorage.getItem("welldone.theme");
  const isDark = mode === "dark" || (mode !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
} catch {
  // The browser keeps nothing for this page.
}
