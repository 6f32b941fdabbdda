// Loads the page again, as it was left: where it was scrolled to, what was sorted, filtered and unfolded.
(() => {
  const {state, bar} = window.cler;
  history.scrollRestoration = "manual";
  const again = () => {
    if (document.hidden || String(getSelection())) return setTimeout(again, 500);
    const box = bar.querySelector("input[type=search]");
    state.caret = document.activeElement === box ? [box.selectionStart, box.selectionEnd] : null;
    history.replaceState({...state, top: scrollY}, "");
    location.reload();
  };
  setTimeout(again, 1000 * SECONDS);
})();
