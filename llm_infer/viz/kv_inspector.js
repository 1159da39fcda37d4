// The KV inspector: one axis of positions; above it the block table, under it tokens, attention and the cached numbers.
import {h, mount, transport, bindKeys, slider, select, button, check, bytes, num, clamp, owner, color, settle, onTheme} from './common.js';

const CHOICES = ['request', 'layer', 'head', 'kind', 'position'];
const visible = (text) => text.replaceAll('\n', '⏎').replaceAll('\t', '⇥').replaceAll('\r', '␍');
const quote = (text) => `“${visible(text)}”`;
const percent = (x) => (x >= 0.0995 ? `${Math.round(x * 100)}%` : `${(x * 100).toFixed(1)}%`);
const rgb = (text) => text.match(/[\d.]+/g).slice(0, 3).map(Number);

// Colours from stops, as 256 × [r, g, b].
function ramp(stops) {
  return Array.from({length: 256}, (_, i) => {
    const x = (i / 255) * (stops.length - 1), k = Math.min(Math.floor(x), stops.length - 2), t = x - k;
    return stops[k].map((c, j) => Math.round(c + (stops[k + 1][j] - c) * t));
  });
}

function unpack(text) {
  const raw = atob(text);
  return Uint8Array.from(raw, (c) => c.charCodeAt(0));
}

// What a page without a kernel has, by the keys under which a kernel's answers are kept.
function savedTensors(data) {
  const store = new Map(), saved = data.saved;
  const r = saved ? data.requests.findIndex((q) => q.id === saved.id) : -1;
  if (r < 0) return store;
  for (const [key, [scale, text]] of Object.entries(saved.cache)) {
    const values = new Float32Array(data.requests[r].num_computed * data.head_dim).fill(NaN);
    values.set(Float32Array.from(unpack(text), (b) => ((b - 127) / 127) * scale), saved.from * data.head_dim);
    store.set(`${r}|${key}`, values);
  }
  for (const [layer, text] of Object.entries(saved.attention)) {
    const all = Float32Array.from(unpack(text), (b) => (b / 255) ** 2);
    for (let p = saved.first, at = 0; p < data.requests[r].num_computed; p++) {
      const size = data.num_heads * (p + 1);
      store.set(`${r}|${layer}|${p}`, all.subarray(at, at + size));
      at += size;
    }
  }
  return store;
}

function render({model, el}) {
  const root = mount(el, 'kv_inspector', 'KV inspector');
  const st = {r: 0, layer: 0, head: 0, kind: 'K', p: 0, pin: null, hover: null, w: 0};
  let data = model.get('data'), saved = new Map(), exact = new Map(), failed = new Map(), wanted = new Map();
  let inflight = null, timer = null, lost = 0, era = 0, silent = false, behind = 0, said = '', laid = '', saving = false, luts = null;

  // ---- tensors: what is here, else what the kernel is asked for
  const canAsk = () => model.get('live') && !silent;
  function get(key, ask) {
    if (exact.has(key)) return exact.get(key);
    if (canAsk() && !failed.has(key)) { wanted.set(ask.ask, [key, ask]); pump(); }
    return saved.get(key);
  }
  function pump() {
    if (inflight || wanted.size === 0) return;
    const [what, [key, ask]] = wanted.entries().next().value;
    wanted.delete(what);
    inflight = key;
    model.send({...ask, key: `${era}#${key}`});
    timer = setTimeout(() => { inflight = null; silent = ++lost > 1; if (silent) { wanted.clear(); fit(); } draw(); }, 4000);
  }
  function onMessage(reply, buffers) {
    if (reply?.key === undefined) return;
    const [when, key] = reply.key.split('#'), back = silent;
    silent = false;
    lost = 0;
    if (Number(when) !== era) return;                                      // asked before the last refresh
    if (key === inflight) { clearTimeout(timer); inflight = null; }
    behind = Math.max(0, reply.step - data.step);
    if (reply.error) { failed.set(key, reply.error); said = reply.error; }
    else if (reply.texts) { const q = data.requests[Number(key.split('|')[0])]; if (q) q.texts = reply.texts; }
    else if (buffers?.length) {
      const view = buffers[0].buffer ? buffers[0] : new DataView(buffers[0]);
      exact.set(key, new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength)));
      for (let size = [...exact.values()].reduce((sum, a) => sum + a.length, 0); size > 8e6 && exact.size > 2;) {
        const [old, array] = exact.entries().next().value;
        exact.delete(old);
        size -= array.length;
      }
    }
    if (back) fit();
    draw();
    pump();
  }
  const req = () => data.requests[st.r];
  const group = () => data.num_heads / data.num_kv_heads;
  const kvHead = () => Math.floor(st.head / group());
  const cacheOf = () => get(`${st.r}|${st.layer}|${st.kind}|${kvHead()}`, {ask: 'cache', request: st.r, layer: st.layer, kind: st.kind, kv_head: kvHead()});
  const weights = () => get(`${st.r}|${st.layer}|${st.p}`, {ask: 'attention', request: st.r, layer: st.layer, position: st.p});
  const textOf = (p) => req().texts?.[p] ?? get(`${st.r}|texts`, {ask: 'texts', request: st.r}) ?? `#${p}`;
  const layers = () => (canAsk() || !data.saved ? Array.from({length: data.num_layers}, (_, i) => i) : data.saved.layers);

  // ---- the parts
  const sentence = h('p', {class: 'li-big', 'aria-live': 'polite'}), badge = h('span', {class: 'li-badge'}), second = h('p', {class: 'kv-second'});
  const status = h('span', {class: 'li-muted kv-status', role: 'status'});
  const pickRequest = select({label: 'request', options: [], onChange: (v) => choose({r: Number(v)})});
  const pickLayer = slider({label: 'layer', min: 0, max: 1, value: 0, format: (i) => String(layers()[i] ?? i), onInput: (i) => choose({layer: layers()[i]})});
  const pickKind = select({label: 'show', options: [['K', 'K'], ['V', 'V']], onChange: (v) => choose({kind: v})});
  const pickKV = select({label: 'K/V head', options: [], onChange: (v) => choose({head: Number(v) * group()})});
  const pickHead = select({label: 'query head', options: [], onChange: (v) => choose({head: Number(v)})});
  const root2 = check({label: 'enlarge small', value: true, onChange: () => draw()});
  for (const [it, keys] of [[pickLayer, 'ArrowUp ArrowDown'], [pickKind, 'k'], [pickHead, 'h']]) it.el.querySelector('input, select').setAttribute('aria-keyshortcuts', keys);
  root2.el.title = 'Heights are square roots, so that small weights are told apart';
  const zoom = (by) => { st.w = clamp(st.w * by, 2, 40); layout(); draw(); };
  const refresh = button('Refresh', () => send('refresh'), {title: 'Look at the engine again', key: 'r'});
  const sample = button('Run the sample prompts', () => send('sample'), {title: 'Adds three short requests to this engine and makes a few steps'});
  const bar = transport({count: 1, first: 0, label: 'position', fps: 8, ticks: [{at: 0, kind: 'block'}], onStep: (p) => { if (p !== st.p) choose({p}); }});
  const blocks = h('div', {class: 'kv-blocks'}), tokens = h('div', {class: 'kv-tokens'}), cross = h('div', {class: 'kv-cross', hidden: true}), pinned = h('div', {class: 'kv-pin', hidden: true});
  const chosen = h('div', {class: 'kv-chosen'});
  const canvas = (name, label) => h('canvas', {class: `kv-canvas kv-${name}`, role: 'img', 'aria-label': label});
  const bars = canvas('bars', 'attention weights'), heads = canvas('heads', 'attention weights of all heads'), heat = canvas('heat', 'cached numbers');
  const missing = h('div', {class: 'kv-missing', hidden: true});
  const wide = h('div', {class: 'kv-wide'}, blocks, tokens, bars, heads, heat, chosen, pinned, cross);
  const scroll = h('div', {class: 'kv-scroll', tabindex: '-1'}, wide);
  const label = (cls, title) => { const note = h('span', {class: 'li-muted'}); return {el: h('div', {class: `kv-label ${cls}`}, h('b', {}, title), note), title(t) { this.el.firstChild.textContent = t; }, set(t) { note.textContent = t; }}; };
  const gutter = {blocks: label('kv-blocks', 'Block table'), tokens: label('kv-tokens', 'Tokens'), bars: label('kv-bars', 'Attention'), heads: label('kv-heads', 'All heads'), heat: label('kv-heat', 'K')};
  gutter.blocks.set('logical → physical');
  gutter.tokens.set('click: who looks');
  const where = h('div', {class: 'li-mono kv-where'}), pool = h('canvas', {class: 'kv-pool', role: 'img'}), poolText = h('div', {class: 'li-muted'}), held = h('div', {class: 'kv-held'});
  const from = button('Look from here', () => st.pin && choose({p: st.pin.p, pin: null}), {title: 'Make the pinned position the one that looks', key: 'Enter'});
  const unpin = button('Unpin', () => { st.pin = null; draw(); }, {key: 'Escape'});
  const table = h('div', {class: 'kv-table'}), details = h('details', {ontoggle: () => drawTable()}, h('summary', {}, 'The same as a table'), table);
  const body = h('div', {class: 'kv-body'},
    h('div', {class: 'li-row kv-controls'}, pickRequest.el, pickLayer.el, pickKind.el, pickKV.el, pickHead.el, root2.el,
      button('−', () => zoom(1 / 1.5), {title: 'Narrower columns', key: '-'}), button('+', () => zoom(1.5), {title: 'Wider columns', key: 'Plus'}), refresh),
    bar.el,
    h('div', {class: 'kv-view'}, h('div', {class: 'kv-gutter'}, Object.values(gutter).map((g) => g.el)), h('div', {class: 'kv-hold li-grow'}, scroll, missing)),
    h('div', {class: 'li-grid li-stack kv-detail'},
      h('section', {class: 'li-panel'}, h('div', {class: 'li-row'}, h('h4', {class: 'li-grow'}, 'Where it lies'), from, unpin), where),
      h('section', {class: 'li-panel'}, h('h4', {}, 'The pool'), pool, poolText),
      h('section', {class: 'li-panel'}, h('h4', {}, 'Bytes held'), held)),
    details);
  const empty = h('div', {class: 'li-row kv-empty', hidden: true}, sample, h('span', {class: 'li-muted'}));
  const again = button('Refresh', () => send('refresh'), {title: 'Look at the engine again'});
  empty.append(again);
  root.append(sentence, second, h('div', {class: 'li-row kv-foot'}, status, badge), empty, body);

  const send = (what) => {
    said = '';
    if (req()) store();                                                         // what was chosen a moment ago is known before the engine is looked at
    model.send({ask: what, key: `${era}#${what}`});
  };
  const store = () => {
    saving = true;
    for (const [name, value] of [['request', req()?.id ?? ''], ['layer', st.layer], ['head', st.head], ['kind', st.kind], ['position', st.p]]) model.set(name, value);
    model.save_changes();
    saving = false;
  };
  const save = settle(store);

  // ---- choices
  function choose(change) {
    const before = st.r;
    Object.assign(st, {hover: null}, change);
    if (st.r !== before) { st.pin = null; st.p = req().num_computed - 1; fit(); }
    said = '';
    draw();
    reveal(st.p);
    save();
  }
  function reveal(p) {
    const x = p * st.w, left = scroll.scrollLeft, room = scroll.clientWidth;
    if (x < left || x + st.w > left + room) { scroll.scrollLeft = Math.max(0, x - room / 2); drawView(); }
  }
  // Takes `data` and the choices from the model.
  function load() {
    if (saving) return;
    if (model.get('data') !== data || saved.size === 0) {
      data = model.get('data');
      exact = new Map(); failed = new Map(); wanted = new Map();
      saved = savedTensors(data);
      behind = 0;
      era++;
      clearTimeout(timer);
      inflight = null;
      laid = '';
      said = data.note ?? '';
      st.pin = st.hover = null;
    }
    const [request, layer, head, kind, position] = CHOICES.map((name) => model.get(name));
    st.r = Math.max(0, data.requests.findIndex((q) => q.id === request));
    Object.assign(st, {layer, head, kind, p: req() ? clamp(position, 0, req().num_computed - 1) : 0});
    fit();
    draw();
    if (req()) reveal(st.p);
  }
  // Fits the controls to what there is, and the columns to the width.
  function fit() {
    if (!req()) return;
    const list = layers();
    if (!list.includes(st.layer)) st.layer = list[Math.floor(list.length / 2)];
    pickRequest.setOptions(data.requests.map((q, i) => [String(i), `${q.id} · ${q.num_computed} tokens`]));
    pickKV.setOptions(Array.from({length: data.num_kv_heads}, (_, i) => [String(i), String(i)]));
    const input = pickLayer.el.querySelector('input');
    input.max = list.length - 1;
    bar.setCount(req().num_computed, req().blocks.map((_, i) => ({at: i * data.block_size, kind: 'block'})).filter((t) => t.at < req().num_computed));
    st.w = clamp(Math.floor(scroll.clientWidth / columns()), columns() <= 128 ? 11 : 2, 26);
    layout();
  }
  const columns = () => req().blocks.length * data.block_size;
  const layout = () => { wide.style.width = `${Math.max(1, columns() * st.w)}px`; };

  // ---- drawing
  function theme() {
    if (!root.isConnected) return;                                         // no colours yet: the observer of sizes comes back
    const read = (name) => rgb(color(badge, name));
    luts = {heat: ramp(['--kv-neg', '--kv-zero', '--kv-pos'].map(read)), weights: ramp(Array.from({length: 9}, (_, i) => read(`--li-h${i}`))),
      ink: color(badge, '--li-fg'), muted: color(badge, '--li-line'), accent: color(badge, '--li-accent')};
    draw();
  }
  const spot = () => st.hover ?? st.pin ?? {p: st.p};
  function draw() {
    const q = req();
    body.hidden = !q;
    empty.hidden = Boolean(q);
    badge.textContent = `${canAsk() ? 'live' : 'saved'} after step ${data.step} · ${data.dtype} · ${data.model ?? 'model'}`;
    badge.title = badge.textContent;
    badge.hidden = !q;
    refresh.disabled = again.disabled = !canAsk();
    if (!q) return drawEmpty();
    if (!luts) return;
    pickRequest.set(String(st.r));
    pickLayer.set(layers().indexOf(st.layer));
    pickKind.set(st.kind);
    pickKV.set(String(kvHead()));
    pickHead.setOptions(Array.from({length: group()}, (_, i) => kvHead() * group() + i).map((i) => [String(i), String(i)]));
    pickHead.set(String(st.head));
    if (bar.at() !== st.p) bar.set(st.p);
    gutter.bars.set(`of ${quote(textOf(st.p))}, head ${st.head}, ${root2.value() ? '√ of ' : ''}0 to 1`);
    gutter.heads.set(`${data.num_heads} rows; click: choose`);
    gutter.heat.title(st.kind === 'K' ? 'Keys' : 'Values');
    refresh.classList.toggle('li-on', behind > 0);
    drawView();
    drawPool();
    drawHeld();
    drawSpot();
    drawTable();
  }
  function drawEmpty() {
    const n = data.idle.length;
    sentence.textContent = n ? `${num(n)} ${n === 1 ? 'request waits and holds' : 'requests wait and hold'} no blocks yet.` : 'No request is alive, so no block of the cache is held.';
    second.textContent = n ? 'llm.step() admits what fits; then refresh.' : "llm.add_request('The sky is'), then llm.step(), makes one that holds blocks; then refresh.";
    status.textContent = said;
    sample.hidden = n > 0;
    sample.disabled = !canAsk();
    empty.querySelector('span').textContent = canAsk() ? '' : 'needs a running kernel';
  }
  const range = () => [Math.max(0, Math.floor(scroll.scrollLeft / st.w)), Math.min(columns(), Math.ceil((scroll.scrollLeft + scroll.clientWidth) / st.w))];

  function drawView() {
    if (!req() || !luts || scroll.clientWidth === 0) return;
    const [p0, p1] = range(), key = [p0, p1, st.w, st.r, Boolean(req().texts)].join();
    if (key !== laid) layOut(p0, p1);
    laid = key;
    Object.assign(chosen.style, {left: `${st.p * st.w}px`, width: `${st.w}px`});
    drawBars(p0, p1);
    drawHeads(p0, p1);
    drawHeat(p0, p1);
  }
  // The block table's and the tokens' elements that are in view.
  function layOut(p0, p1) {
    const q = req(), size = data.block_size, shared = new Map(data.shared), fill = owner(st.r), boxes = [];
    for (let i = Math.floor(p0 / size); i * size < p1; i++) {
      const users = shared.get(q.blocks[i]) ?? 1, width = size * st.w;
      const text = width > 76 ? `${i} → ${q.blocks[i]}${users > 1 ? ` ×${users}` : ''}` : width > 20 ? String(q.blocks[i]) : '';
      boxes.push(h('button', {type: 'button', tabindex: '-1', class: `kv-block${users > 1 ? ' kv-shared' : ''} ${fill.hatch}`, 'data-block': q.blocks[i], 'data-users': users,
        title: `logical block ${i} is physical block ${q.blocks[i]}${users > 1 ? `, in ${users} block tables` : ''}`,
        style: {left: `${i * width}px`, width: `${width}px`, background: fill.fill, color: fill.ink}, onclick: () => choose({p: Math.min(i * size, q.num_computed - 1)})}, text));
    }
    blocks.replaceChildren(...boxes);
    const cells = [], known = q.texts?.length ?? q.num_computed;
    for (let p = p0; p < Math.min(p1, columns()); p++) {
      const kind = p < q.num_prompt ? 'prompt' : p < q.num_computed ? 'output' : p < known ? 'next' : 'free';
      cells.push(h('div', {class: `kv-token kv-${kind}${p % size === 0 ? ' kv-edge' : ''}`, 'data-p': p, style: {left: `${p * st.w}px`, width: `${st.w}px`}}, st.w >= 9 && kind !== 'free' ? visible(textOf(p)).trim() : ''));
    }
    tokens.replaceChildren(...cells);
  }
  // A context in CSS pixels; x = 0 is the left edge of the view.
  function paper(node) {
    const dpr = window.devicePixelRatio || 1, width = scroll.clientWidth, height = node.clientHeight;
    node.style.width = `${width}px`;
    if (node.width !== Math.round(width * dpr)) node.width = Math.round(width * dpr);
    if (node.height !== Math.round(height * dpr)) node.height = Math.round(height * dpr);
    const c = node.getContext('2d');
    c.setTransform(dpr, 0, 0, dpr, 0, 0);
    c.clearRect(0, 0, width, height);
    c.imageSmoothingEnabled = false;
    return [c, width, height];
  }
  const x0 = (p) => p * st.w - scroll.scrollLeft;
  function edges(c, p0, p1, height) {
    c.fillStyle = luts.muted;
    for (let i = Math.ceil(p0 / data.block_size); i * data.block_size <= p1; i++) c.fillRect(x0(i * data.block_size) - 0.5, 0, 1, height);
  }
  function drawBars(p0, p1) {
    const [c, , height] = paper(bars), all = weights();
    edges(c, p0, p1, height);
    if (!all) return;
    c.fillStyle = luts.accent;
    for (let p = p0; p < Math.min(p1, st.p + 1); p++) {
      const x = all[st.head * (st.p + 1) + p], y = (height - 2) * (root2.value() ? Math.sqrt(x) : x);
      c.fillRect(x0(p) + (st.w > 4 ? 1 : 0), height - y, st.w - (st.w > 4 ? 2 : 0), y);
    }
    c.fillRect(x0(p0), height - 1, x0(Math.min(p1, st.p + 1)) - x0(p0), 1);
  }
  function picture(node, p0, p1, rows, pixel, lut) {
    const [c, , height] = paper(node), count = p1 - p0;
    if (count > 0 && pixel) {
      const off = document.createElement('canvas');
      off.width = count;
      off.height = rows;
      const context = off.getContext('2d'), image = context.createImageData(count, rows);
      for (let y = 0; y < rows; y++) for (let x = 0; x < count; x++) {
        const value = pixel(p0 + x, y), at = 4 * (y * count + x);
        if (Number.isNaN(value)) continue;
        const [r, g, b] = lut[clamp(Math.round(value * 255), 0, 255)];
        image.data[at] = r; image.data[at + 1] = g; image.data[at + 2] = b; image.data[at + 3] = 255;
      }
      context.putImageData(image, 0, 0);
      c.drawImage(off, x0(p0), 0, count * st.w, height);
    }
    edges(c, p0, p1 + 1, height);
    return [c, height];
  }
  function drawHeads(p0, p1) {
    const all = weights(), n = st.p + 1;
    const [c, height] = picture(heads, p0, Math.min(p1, n), data.num_heads, all && ((p, row) => Math.sqrt(all[row * n + p])), luts.weights);
    const row = height / data.num_heads;
    c.strokeStyle = luts.ink;
    c.strokeRect(x0(0) + 0.5, st.head * row + 0.5, x0(n) - x0(0) - 1, Math.max(1, row - 1));
  }
  function drawHeat(p0, p1) {
    const values = cacheOf(), d = data.head_dim;
    let most = 0;
    if (values) for (const x of values) if (Math.abs(x) > most) most = Math.abs(x);
    picture(heat, p0, Math.min(p1, req().num_computed), d, values && ((p, row) => { const x = values[p * d + row] / (most || 1); return 0.5 + Math.sign(x) * Math.sqrt(Math.abs(x)) / 2; }), luts.heat);
    gutter.heat.set(values ? `head ${kvHead()}, ${d} numbers a column; ±${num(most, 3)}` : `head ${kvHead()}`);
    const why = [values ? '' : st.kind, weights() ? '' : 'attention'].filter(Boolean).join(' and ');
    missing.hidden = !why;
    missing.textContent = !why ? '' : canAsk() ? [...failed.values()].pop() ?? `asking the kernel for ${why} …`
      : `${why} of this choice: needs a running kernel. This page has ${savedWords()}.`;
  }
  function savedWords() {
    const s = data.saved;
    if (!s) return 'no tensors';
    const n = data.requests.find((q) => q.id === s.id)?.num_computed - 1;
    const whose = s.first === n ? 'the last token' : s.first === 0 ? 'all tokens' : `tokens ${s.first} to ${n}`;
    return `layer${s.layers.length > 1 ? 's' : ''} ${s.layers.join(', ')} of request ${s.id}: K and V of ${s.kv_heads} of ${data.num_kv_heads} K/V heads${s.from ? ` from position ${s.from} on` : ''}, attention of ${whose}`;
  }
  function drawPool() {
    const c = pool.getContext('2d'), dpr = window.devicePixelRatio || 1, width = pool.clientWidth || 240, height = pool.clientHeight || 60, n = data.num_blocks;
    pool.width = width * dpr;
    pool.height = height * dpr;
    c.scale(dpr, dpr);
    let cell = 24;
    while (cell > 1 && Math.floor(width / cell) * Math.floor(height / cell) < n) cell -= cell > 4 ? 1 : 0.25;
    const across = Math.max(1, Math.floor(width / cell)), users = new Map();
    data.requests.forEach((q, i) => q.blocks.forEach((b) => users.set(b, [...(users.get(b) ?? []), i])));
    const fills = data.requests.map((_, i) => i < 8 ? rgb(color(badge, `--li-o${i}`)) : rgb(color(badge, `--li-o${i % 8}`)));
    const here = req().blocks[Math.floor(spot().p / data.block_size)];
    for (let b = 0; b < n; b++) {
      const x = (b % across) * cell, y = Math.floor(b / across) * cell, mine = users.get(b)?.includes(st.r), gap = cell > 4 ? 1 : 0;
      const whose = mine ? st.r : users.get(b)?.[0];
      c.globalAlpha = whose === undefined || mine ? 1 : 0.45;
      c.fillStyle = whose === undefined ? luts.muted : `rgb(${fills[whose]})`;
      if (whose !== undefined) c.fillRect(x, y, cell - gap, cell - gap);
      else if (cell > 4) { c.strokeStyle = luts.muted; c.lineWidth = 1; c.strokeRect(x + 0.5, y + 0.5, cell - 2, cell - 2); }
      else c.fillRect(x, y + cell / 2, cell / 2, 0.5);
      c.globalAlpha = 1;
      if (b === here) { c.strokeStyle = luts.ink; c.lineWidth = 2; c.strokeRect(x + 1, y + 1, Math.max(2, cell - 3), Math.max(2, cell - 3)); }
      if (cell >= 14 && whose !== undefined) { c.fillStyle = whose % 8 === 5 && mine ? '#fff' : mine ? '#000' : luts.ink; c.font = '9px sans-serif'; c.textAlign = 'center'; c.fillText(String(b), x + (cell - 1) / 2, y + cell / 2 + 3); }
    }
    pool.onclick = (event) => {
      const b = Math.floor(event.offsetY / cell) * across + Math.floor(event.offsetX / cell), i = req().blocks.indexOf(b);
      if (i >= 0) return choose({p: Math.min(i * data.block_size, req().num_computed - 1)});
      said = b >= n ? '' : users.has(b) ? `block ${b}: ${users.get(b).map((k) => `logical block ${data.requests[k].blocks.indexOf(b)} of request ${data.requests[k].id}`).join(', ')}` : `block ${b} is free`;
      drawSpot();
    };
    poolText.textContent = `${num(users.size)} of ${num(n)} blocks held, ${num(req().blocks.length)} by request ${req().id}; outlined: block ${here}`;
    pool.setAttribute('aria-label', poolText.textContent);
  }
  function drawHeld() {
    const q = req(), k = q.held, line = (...parts) => h('div', {}, parts);
    held.replaceChildren(
      line(`2 × ${data.num_layers} layers × ${data.num_kv_heads} K/V heads × ${data.head_dim} × ${data.itemsize} B`),
      line(`= ${bytes(k.token)} a token`), line(`× ${data.block_size} = ${bytes(k.block)} a block`),
      line(`× ${num(q.blocks.length)} = `, h('b', {}, bytes(k.request))),
      line(h('span', {class: 'li-muted'}, `${num(k.shared / k.block)} of ${num(q.blocks.length)} blocks are shared; ${columns() === q.num_computed ? 'no slot is' : `${num(columns() - q.num_computed)} ${columns() - q.num_computed === 1 ? 'slot is' : 'slots are'}`} empty`)));
  }
  // What belongs to the position looked at: the only part that changes as the pointer moves.
  function drawSpot() {
    const {p, d} = spot(), q = req(), size = data.block_size, i = Math.floor(p / size), offset = p % size, block = q.blocks[i], slot = block * size + offset;
    const all = weights(), row = all && all.subarray(st.head * (st.p + 1), (st.head + 1) * (st.p + 1)), values = cacheOf();
    const cached = p < q.num_computed, name = p < (q.texts?.length ?? q.num_computed) ? `${quote(textOf(p))}, position ${p},` : `Position ${p}, not there yet,`;
    sentence.textContent = `${name} ${cached ? 'lies' : 'will lie'} in block ${block} at offset ${offset}: slot ${num(slot)}.`;
    let words = cached ? '' : 'Its K and V are computed in the step that takes it in. ';
    if (row) {
      const top = Array.from(row.keys()).sort((a, b) => row[b] - row[a]).slice(0, 3).map((t) => `${t} ${quote(textOf(t))} ${percent(row[t])}`);
      if (p !== st.p && cached) words += p < st.p ? `Position ${st.p}, ${quote(textOf(st.p))}, gives it ${percent(row[p])} of its attention in layer ${st.layer}, head ${st.head}.` : `Position ${st.p}, ${quote(textOf(st.p))}, cannot see it: it comes later.`;
      else words += `In layer ${st.layer}, head ${st.head}, position ${st.p} looks most at ${top.join(', ')}.`;
    }
    second.textContent = words;
    status.textContent = said || (behind ? `The engine has made ${behind} ${behind === 1 ? 'step' : 'steps'} since: refresh.` : '')
      || (canAsk() ? '' : data.saved ? `No kernel: layer${data.saved.layers.length > 1 ? 's' : ''} ${data.saved.layers.join(', ')} of request ${data.saved.id} only.` : '');
    status.title = canAsk() ? '' : `This page has ${savedWords()}.`;
    const index = [st.layer, 'KV'.indexOf(st.kind), block, offset, kvHead()];
    const byte = index.reduce((sum, x, k) => sum + x * data.strides[k], 0) * data.itemsize;
    const number = values && cached ? d === undefined ? `length of the vector ${num(Math.hypot(...values.subarray(p * data.head_dim, (p + 1) * data.head_dim)))}` : `number ${d} of ${data.head_dim}: ${num(values[p * data.head_dim + d])}` : '';
    where.replaceChildren(h('div', {}, `${p} // ${size} = ${i};  block_table[${i}] = ${block}`), h('div', {}, `${p} % ${size} = ${offset};  ${block} × ${size} + ${offset} = slot ${slot}`),
      h('div', {}, `kv_cache[${index.join(', ')}]`), h('div', {}, `bytes ${num(byte)} to ${num(byte + data.head_dim * data.itemsize - 1)}`), h('div', {}, number || ' '));
    from.disabled = unpin.disabled = !st.pin;
    from.disabled ||= st.pin && st.pin.p >= q.num_computed;
    for (const [node, at] of [[cross, st.hover], [pinned, st.pin]]) {
      node.hidden = !at;
      if (at) Object.assign(node.style, {left: `${at.p * st.w}px`, width: `${st.w}px`});
    }
  }
  function drawTable() {
    if (!details.open || !req()) return;
    const q = req(), all = weights(), first = clamp(st.p - 128, 0, Math.max(0, q.num_computed - 257)), cell = (x, c = 'li-num') => h('td', {class: c}, String(x)), rows = [];
    for (let p = first; p < Math.min(q.num_computed, first + 257); p++) {
      const block = q.blocks[Math.floor(p / data.block_size)], offset = p % data.block_size;
      rows.push(h('tr', {}, cell(p), cell(visible(textOf(p)), ''), cell(block), cell(offset), cell(block * data.block_size + offset), cell(all && p <= st.p ? all[st.head * (st.p + 1) + p].toFixed(4) : '–')));
    }
    table.replaceChildren(h('table', {class: 'li-table'}, h('thead', {}, h('tr', {}, ['position', 'token', 'block', 'offset', 'slot', `weight from ${st.p}`].map((t) => h('th', {}, t)))), h('tbody', {}, rows)));
  }

  // ---- pointer: hovering previews, a click on tokens chooses, a click below pins
  function under(event) {
    const box = wide.getBoundingClientRect(), p = Math.floor((event.clientX - box.left) / st.w), inside = (node) => { const b = node.getBoundingClientRect(); return event.clientY >= b.top && event.clientY < b.bottom ? (event.clientY - b.top) / b.height : null; };
    if (p < 0 || p >= columns()) return null;
    const y = inside(heat), row = inside(heads);
    return {p, d: y === null ? undefined : Math.floor(y * data.head_dim), head: row === null ? undefined : Math.floor(row * data.num_heads), onTokens: inside(tokens) !== null, onBlocks: inside(blocks) !== null};
  }
  wide.addEventListener('pointermove', (event) => { st.hover = under(event); drawSpot(); drawPool(); });
  wide.addEventListener('pointerleave', () => { st.hover = null; if (req()) { drawSpot(); drawPool(); } });
  wide.addEventListener('click', (event) => {
    const at = under(event);
    if (!at || at.onBlocks) return;
    if (at.onTokens) return at.p < req().num_computed ? choose({p: at.p}) : undefined;
    if (at.head !== undefined) return choose({head: at.head});
    st.pin = st.pin && st.pin.p === at.p && st.pin.d === at.d ? null : at;
    drawSpot();
    drawPool();
  });
  scroll.addEventListener('scroll', () => { drawView(); });
  const layerBy = (k) => { const list = layers(); choose({layer: list[clamp(list.indexOf(st.layer) + k, 0, list.length - 1)]}); };
  const alive = (fn) => () => { if (req()) fn(); };
  bindKeys(root, {...bar.keys, ArrowUp: [alive(() => layerBy(1)), 'layer above'], ArrowDown: [alive(() => layerBy(-1)), 'layer below'],
    k: [alive(() => choose({kind: st.kind === 'K' ? 'V' : 'K'})), 'keys or values'], h: [alive(() => choose({head: (st.head + 1) % data.num_heads})), 'next query head'],
    '+': [alive(() => zoom(1.5)), 'wider columns'], '-': [alive(() => zoom(1 / 1.5)), 'narrower columns'],
    Enter: [alive(() => from.click()), 'look from the pinned position'], Escape: [alive(() => { st.pin = st.hover = null; draw(); }), 'unpin'], r: [() => { if (canAsk()) send('refresh'); }, 'refresh']});
  const watch = `change:data ${CHOICES.map((name) => `change:${name}`).join(' ')}`.split(' ');
  for (const name of watch) model.on(name, load);
  model.on('msg:custom', onMessage);
  const sized = new ResizeObserver(() => { if (!luts) theme(); if (req()) { if (st.w === 0 || scroll.scrollWidth <= scroll.clientWidth || st.w === 2) fit(); draw(); } });
  sized.observe(scroll);
  const unwatch = onTheme(root, theme);
  load();
  theme();
  return () => { sized.disconnect(); unwatch(); bar.stop(); clearTimeout(timer); for (const name of watch) model.off(name, load); model.off('msg:custom', onMessage); };
}

export default {render};
