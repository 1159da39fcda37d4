// A widget's model where there is no kernel: the saved state in the page, and the events of a front end.
// Widgets stand in the page as <div data-li-widget="ID">, their states in <script type="application/json" id="li-widgets">: {sources, states},
// where `_esm` and `_css` of a state are places in `sources`, since many widgets have the same.

export function staticModel(state) {
  const values = 'live' in state ? {...state, live: false} : {...state}, handlers = new Map();
  const emit = (name, ...args) => { for (const fn of [...(handlers.get(name) ?? [])]) fn(...args); };
  const model = {
    get: (key) => values[key],
    set(key, value) {
      const changes = typeof key === 'object' ? key : {[key]: value};
      for (const [k, v] of Object.entries(changes)) {
        if (values[k] === v) continue;
        values[k] = v;
        emit(`change:${k}`, model, v);
      }
      emit('change', model);
    },
    save_changes() {},                              // nobody listens
    send() {},                                      // and nobody answers: widgets ask get('live') first
    on(names, fn) { for (const n of names.split(/\s+/)) handlers.set(n, [...(handlers.get(n) ?? []), fn]); },
    off(names, fn) {
      if (!names) return handlers.clear();
      for (const n of names.split(/\s+/)) handlers.set(n, fn ? (handlers.get(n) ?? []).filter((f) => f !== fn) : []);
    },
    widget_manager: null,
  };
  return model;
}

const modules = new Map();                          // one module and one <style> for all widgets of a kind

function moduleOf(source) {
  if (!modules.has(source)) modules.set(source, import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'}))));
  return modules.get(source);
}

function style(css) {
  if (!css || [...document.querySelectorAll('style[data-li]')].some((node) => node.textContent === css)) return;
  const node = document.createElement('style');
  node.dataset.li = '';
  node.textContent = css;
  document.head.append(node);
}

// Draws one widget into `el`; returns its model.
export async function show(el, state) {
  let widget = (await moduleOf(state._esm)).default;
  if (typeof widget === 'function') widget = await widget();
  style(state._css);
  const model = staticModel(state);
  await widget.initialize?.({model});
  await widget.render?.({model, el});
  return model;
}

// Draws every widget of the page; a text that stands in its place is shown only if that fails.
export async function start() {
  const {sources, states} = JSON.parse(document.getElementById('li-widgets').textContent);
  for (const el of document.querySelectorAll('[data-li-widget]')) {
    const state = states[el.dataset.liWidget];
    if (!state) continue;
    const fallback = [...el.childNodes];
    try {
      await show(el, {...state, _esm: sources[state._esm], _css: sources[state._css]});
      for (const node of fallback) node.remove();
      el.dataset.liShown = '';
    } catch (error) { console.error('widget', el.dataset.liWidget, error); }
  }
}
