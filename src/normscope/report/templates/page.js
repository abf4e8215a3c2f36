{ // a block of its own: the bundle declares many short names
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const draw = () => {
    const ground = dark.matches ? "dark" : "light";
    const options = {renderer: "svg", actions: false, tooltip: {theme: ground}};
    for (const [id, spec] of Object.entries(NORMSCOPE_CHARTS)) {
      window.vegaEmbed("#" + id, {...spec, config: NORMSCOPE_CONFIGS[ground]}, options).catch(console.error);
    }
  };
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
  draw();
}
