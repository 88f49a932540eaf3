// What JupyterLab loads as an extension, written by hand, as it is only a style. JupyterLab breaks a long line of
// output wherever it ends, in the middle of a word, too. Here a line ends between words; only a word that is longer
// than a line is broken. JupyterLab caches this file for good: a change needs another name (package.json has it).
const STYLE = ".jp-OutputArea .jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; }";

function activate() {
  const style = document.createElement("style");
  style.textContent = STYLE;
  document.head.append(style);
}

const plugin = { id: "course-output:words", autoStart: true, activate };
window._JUPYTERLAB = window._JUPYTERLAB || {};
window._JUPYTERLAB["course-output"] = {
  init: () => {},
  get: async () => () => ({ __esModule: true, default: plugin }),
};
