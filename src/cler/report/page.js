// Sorts tables by a click on a heading, filters rows by method and text, keeps headings in sight, and finds what a link leads to.
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const state = Object.assign({methods: [], text: "", sorts: {}, folds: {}}, history.state || {});
  const first = row => row.querySelector("td").textContent.trim();
  const more = row => row.nextElementSibling?.matches("tr.more") ? row.nextElementSibling : null;

  const number = text => parseFloat(text.replace(/−/g, "-").replace(/^[<(]\s*/, ""));
  const compare = (one, other, sign) => {
    if (!one || !other) return other ? 1 : one ? -1 : 0;  // what is not known comes last
    const [a, b] = [number(one), number(other)];
    return sign * (isNaN(a) || isNaN(b) ? one.localeCompare(other) : a - b);
  };
  const order = new Map();
  const sort = (table, column, direction) => {
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter(row => !row.matches(".heading, .more"));
      if (!order.has(body)) order.set(body, [...rows]);
      const sorted = [...order.get(body)];
      const text = row => row.cells[column]?.textContent.trim() || "";
      const sign = direction === "ascending" ? 1 : -1;
      if (direction) sorted.sort((one, other) => compare(text(one), text(other), sign));
      for (const row of sorted) {
        const below = more(row);
        body.append(row);
        if (below) body.append(below);
      }
    }
    const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    headings.forEach((heading, index) => {
      if (direction && index === column) heading.setAttribute("aria-sort", direction);
      else heading.removeAttribute("aria-sort");
    });
    if (direction) state.sorts[table.dataset.sheet] = [column, direction];
    else delete state.sorts[table.dataset.sheet];
  };
  for (const table of all("table[data-sheet]")) {
    const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      heading.append(button);
      const turns = heading.matches(".text") ? ["ascending", "descending"] : ["descending", "ascending"];
      button.addEventListener("click", () => {
        sort(table, column, turns[turns.indexOf(heading.getAttribute("aria-sort")) + 1]);
      });
    });
    if (state.sorts[table.dataset.sheet]) sort(table, ...state.sorts[table.dataset.sheet]);
  }

  const bar = document.getElementById("filters");
  const said = bar.querySelector("output");
  const items = all("[data-method]").map(item => {
    const above = [item.closest("section")?.querySelector("h2"), item.closest("tbody")?.querySelector("tr.heading")];
    const words = [item.dataset.name || first(item), ...above.map(one => one?.textContent.trim() || "")];
    return {item, text: words.join(" ").toLowerCase()};
  });
  const filter = () => {
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, rows = 0;
    for (const {item, text} of items) {
      const chosen = !state.methods.length || state.methods.includes(item.dataset.method);
      item.hidden = !chosen || !words.every(word => text.includes(word));
      if (more(item)) more(item).hidden = item.hidden;
      if (item.matches("tr.runs")) { rows += 1; shown += !item.hidden; }
    }
    for (const body of all("tbody")) {
      const heading = body.querySelector("tr.heading");
      if (heading) heading.hidden = all("tr[data-method]", body).every(row => row.hidden);
    }
    said.value = shown < rows ? `${shown} of ${rows} rows` : "";
    for (const box of all("input[type=checkbox]", bar)) box.checked = state.methods.includes(box.value);
    for (const box of all("input[type=search]", bar)) if (box.value !== state.text) box.value = state.text;
  };
  bar.hidden = !items.length;
  bar.addEventListener("submit", event => event.preventDefault());
  bar.addEventListener("input", () => {
    state.methods = all("input:checked", bar).map(box => box.value);
    state.text = bar.querySelector("input[type=search]").value;
    filter();
  });
  const show_all = () => {
    Object.assign(state, {methods: [], text: ""});
    filter();
  };
  bar.addEventListener("reset", event => {
    event.preventDefault();  // filter empties the boxes
    show_all();
  });

  const keep_headings = () => {  // of tables that need not scroll by themselves, below the filters
    const height = getComputedStyle(bar).position === "sticky" ? bar.offsetHeight : 0;
    document.documentElement.style.setProperty("--filters", `${height}px`);
    for (const box of all(".scroll")) {
      box.classList.remove("fits");
      if (box.scrollWidth <= box.clientWidth) box.classList.add("fits");
    }
  };
  addEventListener("resize", keep_headings);

  const key = details => {
    const above = [details.closest("section")?.querySelector("h2"), details.closest("tbody")?.querySelector("tr.heading")];
    const name = details.closest("tr")?.dataset.name || details.querySelector("summary").textContent.trim();
    return [...above.map(one => one?.textContent.trim()), name].join(": ");
  };
  for (const details of all("details")) {
    const name = key(details);
    if (name in state.folds) details.open = state.folds[name];
    details.addEventListener("toggle", () => {
      state.folds[name] = details.open;
      keep_headings();
    });
  }
  for (const below of all("tr.more")) {
    const row = below.previousElementSibling;
    row.addEventListener("click", event => {
      if (event.target.closest("summary") || String(getSelection())) return;  // it opens by itself; text is to be copied
      const details = row.querySelector("details");
      details.open = !details.open;
    });
  }

  const show = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (target.hidden) show_all();
    const fold = target.closest("details:not([open])");
    if (fold) fold.open = true;
    if (target.matches("tr.runs")) target.querySelector("details").open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", show);
  filter();
  keep_headings();
  if ("top" in state) {
    scrollTo({top: state.top, behavior: "instant"});
    if (state.caret) {
      const box = bar.querySelector("input[type=search]");
      box.focus({preventScroll: true});
      box.setSelectionRange(...state.caret);
    }
    delete state.top;
    history.replaceState(null, "");
  } else show();
  window.cler = {state, bar};
})();
