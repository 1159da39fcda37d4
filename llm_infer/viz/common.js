// What all widgets share: elements, keys, the transport bar, sliders, numbers, colours. No dependencies.
// A widget's file begins with one import line from here; Python puts this text in its place (viz/widget.py).

function fill(node, attrs, children) {
  for (const [key, value] of Object.entries(attrs ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'style' && typeof value === 'object') {
      for (const [k, v] of Object.entries(value)) if (k.startsWith('--')) node.style.setProperty(k, v); else node.style[k] = v;
    } else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false).map((c) => (c instanceof Node ? c : String(c))));
  return node;
}

// An HTML element: h('p', {class: 'li-muted', onclick: f, style: {color: 'red'}}, 'text', child, [more]).
export const h = (tag, attrs, ...children) => fill(document.createElement(tag), attrs, children);
// The same for SVG.
export const s = (tag, attrs, ...children) => fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attrs, children);

export const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

// 1234567 -> '1,234,567'; 0.123456 -> '0.1235': four digits, unless `digits` says how many.
export function num(x, digits = 4) {
  if (!Number.isFinite(x)) return String(x);
  if (Number.isInteger(x)) return x.toLocaleString('en-US');
  return Math.abs(x) >= 1e15 || Math.abs(x) < 1e-4 ? x.toExponential(digits - 1) : x.toLocaleString('en-US', {maximumSignificantDigits: digits});
}

// 94371840 -> '90 MiB (94,371,840 B)'.
export function bytes(n) {
  let unit = 0, x = n;
  while (Math.abs(x) >= 1024 && unit < 5) { x /= 1024; unit++; }
  return unit === 0 ? `${num(n)} B` : `${Number.isInteger(x) ? num(x) : x.toFixed(1)} ${['KiB', 'MiB', 'GiB', 'TiB', 'PiB'][unit - 1]} (${num(n)} B)`;
}

// The colours of owner number i. From the ninth on they begin again, hatched.
export const owner = (i) => ({fill: `var(--li-o${i % 8})`, ink: `var(--li-o${i % 8}-ink)`, hatch: i % 16 < 8 ? '' : 'li-hatch'});

// The colour that a theme variable has now, as rgb(): for canvases, which know no variables.
export function color(root, name) {
  const probe = root.appendChild(h('span', {hidden: true, style: {color: `var(${name})`}}));
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

// Calls fn once `ms` have passed without another call.
export function settle(fn, ms = 300) {
  let timer = null;
  return (...args) => { clearTimeout(timer); timer = setTimeout(() => fn(...args), ms); };
}

const isField = (node) => /^(SELECT|TEXTAREA)$/.test(node.tagName) || node.isContentEditable
  || (node.tagName === 'INPUT' && !['checkbox', 'radio', 'range', 'button'].includes(node.type));

// The root of a widget, in `el`. It keeps the focus, and so the keys, when the element that had it is drawn anew.
export function mount(el, name, title) {
  const root = h('div', {class: `li li-${name}`, tabindex: '0', 'data-lm-suppress-shortcuts': 'true', role: 'group', 'aria-label': title});
  root.addEventListener('keydown', (event) => { if (isField(event.target)) event.stopPropagation(); });   // what is typed is no notebook's command
  const keep = () => queueMicrotask(() => { if (document.activeElement === document.body) root.focus({preventScroll: true}); });
  root.addEventListener('click', keep);
  root.addEventListener('keydown', keep);
  el.append(root);
  return root;
}

const SPOKEN = {' ': 'Space', Plus: '+', ArrowRight: '→', ArrowLeft: '←', ArrowUp: '↑', ArrowDown: '↓', 'Shift+ArrowRight': 'Shift →',
  'Shift+ArrowLeft': 'Shift ←', Escape: 'Esc'};
const keyName = (key) => (key === ' ' ? 'Space' : key === '+' ? 'Plus' : key);
// What says that a control does the same as some keys: 'ArrowRight .' or ['+', '-']; a blank is named 'Space'.
const shortcuts = (key) => (key && key.length ? (Array.isArray(key) ? key : key.split(/\s+/)).map(keyName).join(' ') : null);

// Binds keys to functions, or to [function, 'what it does'] to be listed under `?`. W, A, S and D belong to the notebook.
export function bindKeys(root, keys) {
  const all = (root.liKeys ??= {});
  const first = Object.keys(all).length === 0;
  for (const [key, value] of Object.entries(keys)) {
    if (/^[wasd]$/i.test(key)) throw new Error(`the key ${key} is the notebook's own`);
    all[key] = Array.isArray(value) ? value : [value, ''];
  }
  root.dataset.keys = Object.keys(all).map(keyName).join(' ');
  if (first) root.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const {tagName, type} = event.target, key = event.shiftKey && event.key.length > 1 ? `Shift+${event.key}` : event.key;
    if (isField(event.target) || (type === 'range' && /^(Arrow|Home|End|Page)/.test(key))) return;
    if (/^(BUTTON|SUMMARY|INPUT)$/.test(tagName) && type !== 'range' && (key === ' ' || key === 'Enter')) return;
    if (!(key in all)) return;
    event.preventDefault();
    event.stopPropagation();
    all[key][0](event);
  });
}

// A button; `key` names the keys that do the same: 'ArrowRight .', 'Space', or a list. Sliders, selects and checks take `key` too.
export function button(text, onClick, {title = '', key = ''} = {}) {
  const keys = (shortcuts(key) ?? '').split(' ').filter(Boolean).map((k) => SPOKEN[k] ?? k).join(' or ');
  return h('button', {type: 'button', class: 'li-btn', title: keys ? `${title || text} (${keys})` : title, 'aria-label': title || text,
    'aria-keyshortcuts': shortcuts(key), onclick: onClick}, text);
}

export function slider({label, min, max, step = 1, value, format = num, onInput, key = ''}) {
  const input = h('input', {type: 'range', min, max, step, 'aria-label': label, 'aria-keyshortcuts': shortcuts(key)}), shown = h('output', {});
  const show = () => { shown.textContent = format(Number(input.value)); input.setAttribute('aria-valuetext', shown.textContent); };
  input.value = value;
  input.addEventListener('input', () => { show(); onInput?.(Number(input.value)); });
  show();
  return {el: h('label', {class: 'li-field'}, h('span', {}, label), input, shown), value: () => Number(input.value), set(v) { input.value = v; show(); }};
}

export function select({label, options, value, onChange, key = ''}) {
  const input = h('select', {'aria-label': label, 'aria-keyshortcuts': shortcuts(key)});
  const setOptions = (list) => {
    input.replaceChildren(...list.map(([v, text]) => h('option', {value: v}, text)));
  };
  setOptions(options);
  input.value = value;
  input.addEventListener('change', () => onChange?.(input.value));
  return {el: h('label', {class: 'li-field'}, h('span', {}, label), input), value: () => input.value, set(v) { input.value = v; }, setOptions};
}

export function check({label, value, onChange, key = ''}) {
  const input = h('input', {type: 'checkbox', 'aria-keyshortcuts': shortcuts(key)});
  input.checked = Boolean(value);
  input.addEventListener('change', () => onChange?.(input.checked));
  return {el: h('label', {class: 'li-field'}, input, h('span', {}, label)), value: () => input.checked, set(v) { input.checked = Boolean(v); }};
}

// Words beside the pointer; what they say must also stand where no pointer is needed.
export function tip(root) {
  const el = root.appendChild(h('div', {class: 'li-tip', role: 'tooltip', hidden: true}));
  return {
    show(x, y, content) {
      el.replaceChildren(content instanceof Node ? content : String(content));
      el.hidden = false;
      const box = root.getBoundingClientRect();
      el.style.left = `${clamp(x - box.left + 12, 0, Math.max(0, box.width - el.offsetWidth))}px`;
      el.style.top = `${clamp(y - box.top + 14, 0, Math.max(0, box.height - el.offsetHeight))}px`;
    },
    hide() { el.hidden = true; },
  };
}

// Calls fn when the host's theme changes. Returns a function that ends this.
export function onTheme(root, fn) {
  const later = () => requestAnimationFrame(() => fn());
  const watch = new MutationObserver(later), media = matchMedia('(prefers-color-scheme: dark)');
  const options = {attributes: true, attributeFilter: ['class', 'theme', 'data-jp-theme-light', 'data-jp-theme-name', 'data-vscode-theme-kind']};
  watch.observe(document.documentElement, options);
  watch.observe(document.body, options);
  media.addEventListener('change', later);
  return () => { watch.disconnect(); media.removeEventListener('change', later); };
}

const TICKS = {preempted: '✕', hit: '◆', admitted: '▲', finished: '●'};      // the rarest first: it wins where two share a place

function tickMarks(ticks, count, go) {
  const order = Object.keys(TICKS), places = new Map();
  for (const tick of ticks) {
    const place = Math.round((tick.at / Math.max(1, count - 1)) * 120), old = places.get(place);
    if (!old || order.indexOf(tick.kind) < order.indexOf(old.kind)) places.set(place, tick);
  }
  return [...places.values()].map(({at, kind, title = kind}) => h('span', {class: 'li-tick', 'data-kind': kind, 'data-at': at, 'aria-hidden': 'true',
    title, style: {left: `calc(8px + (100% - 16px) * ${at / Math.max(1, count - 1)})`}, onclick: () => go(at)}, TICKS[kind] ?? '▪'));
}

// First, back, play, next, last; a number to type; a slider with marks; speed; `?`. onStep(at) on every change, 0 <= at < count.
// `first` is the number shown for at = 0. `keys` goes to bindKeys. Without `ticks` (null) there is no jumping to events.
export function transport({count, at = 0, label = 'step', ticks = null, onStep, fps = 4, first = 1}) {
  let timer = null, here = clamp(at, 0, Math.max(0, count - 1));
  const stop = () => { clearInterval(timer); timer = null; show(); };
  const go = (to) => {
    const next = clamp(Math.round(Number(to) || 0), 0, Math.max(0, count - 1)), changed = next !== here;
    here = next;
    show();
    if (changed) onStep?.(here);
  };
  const by = (to) => { stop(); go(to); };
  const event = (way) => {
    const places = [...new Set(ticks.map((tick) => tick.at))].sort((a, b) => a - b);
    by(way > 0 ? places.find((p) => p > here) ?? here : places.findLast((p) => p < here) ?? here);
  };
  const play = () => {
    if (timer !== null) return stop();
    if (here >= count - 1) go(0);
    const turn = () => { if (here >= count - 1) stop(); else go(here + 1); };
    timer = setInterval(turn, 1000 / Number(speed.value()));
    show();
  };
  const speed = select({label: 'speed', value: String(fps), options: [...new Set([1, 2, 4, 8, 16, fps])].sort((a, b) => a - b).map((v) => [String(v), `${v} / s`]),
    onChange: () => { if (timer !== null) { stop(); play(); } }});
  const buttons = {first: button('⇤', () => by(0), {title: `First ${label}`, key: 'Home'}),
    eventBack: button('«', () => event(-1), {title: 'Event before', key: 'Shift+ArrowLeft'}),
    back: button('‹', () => by(here - 1), {title: `One ${label} back`, key: 'ArrowLeft ,'}),
    play: button('▶', play, {title: 'Play or pause', key: 'Space'}),
    next: button('›', () => by(here + 1), {title: `Next ${label}`, key: 'ArrowRight .'}),
    eventNext: button('»', () => event(1), {title: 'Next event', key: 'Shift+ArrowRight'}),
    last: button('⇥', () => by(count - 1), {title: `Last ${label}`, key: 'End'})};
  const number = h('input', {type: 'number', min: first, 'aria-label': `${label} number`, onchange: () => { by(Number(number.value) - first); show(); }});
  const total = h('span', {class: 'li-muted'});
  const range = h('input', {type: 'range', min: 0, step: 1, 'aria-label': label, oninput: () => by(Number(range.value))});
  const marks = h('div', {class: 'li-marks'});
  const list = h('div', {class: 'li-keys', hidden: true});
  if (ticks === null) delete buttons.eventBack, delete buttons.eventNext;
  const help = button('?', () => showKeys(list.hidden), {title: 'Keys', key: '?'});
  const el = h('div', {class: 'li-transport', role: 'group', 'aria-label': `${label}s`}, Object.values(buttons), h('label', {class: 'li-field'}, h('span', {}, label), number, total),
    h('div', {class: 'li-track'}, marks, range), speed.el, help, list);

  function showKeys(open) {
    const rows = Object.entries(el.closest('.li')?.liKeys ?? {}).filter(([, [, what]]) => what).map(([key, [, what]]) =>
      h('tr', {}, h('td', {}, h('kbd', {}, SPOKEN[key] ?? key)), h('td', {}, what)));
    list.replaceChildren(h('table', {class: 'li-table'}, h('tbody', {}, rows)));
    list.hidden = !open;
    help.setAttribute('aria-expanded', String(open));
  }
  function show() {
    number.value = here + first;
    range.value = here;
    range.setAttribute('aria-valuetext', `${label} ${here + first} of ${count - 1 + first}`);
    buttons.play.textContent = timer === null ? '▶' : '❚❚';
    buttons.play.setAttribute('aria-pressed', String(timer !== null));
    buttons.first.disabled = buttons.back.disabled = here <= 0;
    buttons.last.disabled = buttons.next.disabled = here >= count - 1;
  }
  function setCount(n, newTicks = ticks) {
    count = n;
    ticks = newTicks;
    number.max = count - 1 + first;
    range.max = Math.max(0, count - 1);
    total.textContent = `of ${num(count - 1 + first)}`;
    marks.replaceChildren(...tickMarks(ticks, count, by));
    here = clamp(here, 0, Math.max(0, count - 1));
    show();
  }
  setCount(count, ticks ?? []);
  const keys = {ArrowRight: [() => by(here + 1), `next ${label}`], '.': [() => by(here + 1), ''], ArrowLeft: [() => by(here - 1), `one ${label} back`],
    ',': [() => by(here - 1), ''], ' ': [play, 'play or pause'], Home: [() => by(0), `first ${label}`], End: [() => by(count - 1), `last ${label}`],
    ...(buttons.eventBack ? {'Shift+ArrowRight': [() => event(1), 'next event'], 'Shift+ArrowLeft': [() => event(-1), 'event before']} : {}),
    '?': [() => showKeys(list.hidden), 'these keys']};
  return {el, set: go, setCount, at: () => here, playing: () => timer !== null, stop, keys};
}
