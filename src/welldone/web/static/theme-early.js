// Applies the theme before the first paint, for which modules run too late. theme.js takes over later.

try {
  const mode = localStorage.getItem("welldone.theme");
  const isDark = mode === "dark" || (mode !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
} catch {
  // No storage.
}
