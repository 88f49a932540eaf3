// On paper, every fold is open. A group of folds, of which one is open at a time, is none while it is printed.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details:not([open])")) {
    fold.dataset.closed = fold.name;
    fold.name = "";
    fold.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const fold of document.querySelectorAll("details[data-closed]")) {
    fold.open = false;
    fold.name = fold.dataset.closed;
    delete fold.dataset.closed;
  }
});
