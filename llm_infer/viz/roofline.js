// The roofline of one decode step and one prefill step: the same counts as roofline.py's op_costs, from the same shapes.
import {h, s, mount, bindKeys, slider, select, button, num, clamp, settle} from './common.js';

const OPS = {qkv: ['Q', 'Q, K and V', '2 · tokens · hidden_size · (num_heads + 2 · num_kv_heads) · head_dim'],
  attention: ['A', 'attention', '4 · (query, key) pairs · num_heads · head_dim'],
  o: ['O', 'output projection', '2 · tokens · num_heads · head_dim · hidden_size'],
  gate_up: ['G', 'gate and up', '2 · tokens · hidden_size · 2 · intermediate_size'],
  down: ['D', 'down', '2 · tokens · intermediate_size · hidden_size'],
  lm_head: ['L', 'LM head', '2 · rows of logits · hidden_size · vocab_size, once'],
  norms: ['N', 'norms and adds', 'five per number'],
  small: ['S', 'RoPE, write, SiLU', 'three per rotated number, five per gated one']};
const DTYPES = {float32: 4, bfloat16: 2, float16: 2};
const sum = (list) => list.reduce((a, b) => a + b, 0);
const plus = (a, b) => a.map((x, i) => x + b[i]);
const times = (a, n) => a.map((x) => x * n);
const moved = (c) => c[1] + c[2] + c[3];                       // a cost: FLOPs, bytes of weights, of K and V, of activations

function gemmCost(tokens, outs, ins, size, bias) {
  return tokens === 0 ? [0, 0, 0, 0] : [2 * tokens * outs * ins, (outs * ins + outs * bias) * size, 0, tokens * (ins + outs) * size];
}

function layerCosts(c, kvTokens, queryLens, seqLens, size) {
  const tokens = sum(queryLens), q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim, hidden = c.hidden_size;
  const gemm = (n, outs, ins, bias) => gemmCost(n, outs, ins, size, Number(bias));
  const pairs = sum(queryLens.map((n, i) => n * (2 * seqLens[i] - n + 1) / 2)), read = sum(seqLens.filter((_, i) => queryLens[i] > 0));
  const rows = 2 * tokens * hidden, heads = tokens * (q + kv) * c.qk_norm;
  const rotated = (tokens * c.num_heads + kvTokens * c.num_kv_heads) * c.rotary_dim;
  return {
    qkv: kvTokens === tokens ? gemm(tokens, q + 2 * kv, hidden, c.qkv_bias) : plus(gemm(kvTokens, 2 * kv, hidden, c.qkv_bias), gemm(tokens, q, hidden, c.qkv_bias)),
    attention: [4 * pairs * q, 0, 2 * read * kv * size, 2 * tokens * q * size],
    o: gemm(tokens, hidden, q, c.o_bias), gate_up: gemm(tokens, 2 * c.intermediate_size, hidden, c.mlp_bias),
    down: gemm(tokens, hidden, c.intermediate_size, c.mlp_bias),
    norms: [5 * rows + 4 * heads, tokens ? (2 * hidden + 2 * c.head_dim * c.qk_norm) * size : 0, 0, (4 * rows + 2 * heads) * size],
    small: [3 * rotated + 5 * tokens * c.intermediate_size, 0, 2 * kvTokens * kv * size,
      (2 * rotated + 2 * kvTokens * kv + 3 * tokens * c.intermediate_size) * size]};
}

function opCosts(c, queryLens, seqLens, dtype) {
  const size = DTYPES[dtype], tokens = sum(queryLens), ones = queryLens.map(() => 1), row = c.hidden_size * size;
  const layer = layerCosts(c, tokens, queryLens, seqLens, size), last = layerCosts(c, tokens, ones, seqLens, size);
  const costs = Object.fromEntries(Object.keys(layer).map((name) => [name, plus(times(layer[name], c.num_layers - 1), last[name])]));
  costs.lm_head = gemmCost(ones.length, c.vocab_size, c.hidden_size, size, 0);
  costs.small = plus(costs.small, [0, 0, 0, 2 * tokens * row]);
  costs.norms = plus(costs.norms, [4 * tokens * c.hidden_size, row, 0, 2 * tokens * row]);
  return costs;
}

function stepBound(costs, peak, bandwidth) {
  const ops = Object.keys(OPS).map((name) => {
    const cost = costs[name], seconds = Math.max(cost[0] / peak, moved(cost) / bandwidth);
    return {name, cost, seconds, intensity: cost[0] / Math.max(moved(cost), 1), memory: cost[0] / Math.max(moved(cost), 1) < peak / bandwidth};
  });
  const seconds = sum(ops.map((op) => op.seconds)), waits = sum(ops.filter((op) => op.memory).map((op) => op.seconds)) / seconds;
  for (const op of ops) op.share = op.seconds / seconds;
  const all = ops.map((op) => op.cost).reduce(plus);
  return {ops, seconds, waits, memory: waits > 0.5, weights: all[1] / moved(all), kv: all[2] / moved(all)};
}

const PREFIX = [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k'], [1, '']];
function si(x, unit) {
  const [scale, letter] = PREFIX.find(([at]) => x >= at * 0.9995) ?? [1, ''];
  return `${num(Number((x / scale).toPrecision(3)))} ${letter}${unit}`;
}
const time = (x) => (x < 1e-3 ? `${num(Number((x * 1e6).toPrecision(3)))} µs` : x < 1 ? `${num(Number((x * 1e3).toPrecision(3)))} ms` : `${num(Number(x.toPrecision(3)))} s`);
const rate = (x) => num(x >= 100 ? Math.round(x) : Number(x.toPrecision(3)));
const share = (x) => (x < 0.005 && x > 0 ? '<1%' : `${Math.round(100 * x)}%`);

const W = 480, H = 322, LEFT = 72, RIGHT = 20, TOP = 24, BOTTOM = 40, XMIN = -1, XMAX = 4.3;
const px = (x) => LEFT + (W - LEFT - RIGHT) * (clamp(Math.log10(Math.max(x, 1e-9)), XMIN, XMAX) - XMIN) / (XMAX - XMIN);

// Letters of one phase in a row, in the order of their intensities, at least 17 apart.
function spread(xs, low, high, gap = 17) {
  const order = xs.map((x, i) => [x, i]).sort((a, b) => a[0] - b[0]), out = [];
  let last = low - gap;
  for (const [x, i] of order) { last = Math.max(x, last + gap); out[i] = last; }
  let next = high + gap;
  for (const [, i] of order.reverse()) { out[i] = Math.min(out[i], next - gap); next = out[i]; }
  return out;
}

function drawPlot(bounds, peak, bandwidth, pick, hover) {
  const top = Math.log10(peak) + 0.6, bottom = top - 5, ridge = peak / bandwidth;
  const py = (y) => TOP + (H - TOP - BOTTOM) * (top - clamp(Math.log10(Math.max(y, 1e-9)), bottom, top)) / (top - bottom);
  const roof = (x) => Math.min(peak, bandwidth * x), parts = [];
  for (let e = XMIN; e <= XMAX; e++) parts.push(s('line', {class: 'rf-grid', x1: px(10 ** e), x2: px(10 ** e), y1: TOP, y2: H - BOTTOM}),
    s('text', {class: 'rf-tick', x: px(10 ** e), y: H - BOTTOM + 14, 'text-anchor': 'middle'}, num(10 ** e)));
  for (let e = Math.ceil(bottom); e <= top; e++) parts.push(s('line', {class: 'rf-grid', x1: LEFT, x2: W - RIGHT, y1: py(10 ** e), y2: py(10 ** e)}),
    s('text', {class: 'rf-tick', x: LEFT - 5, y: py(10 ** e) + 4, 'text-anchor': 'end'}, si(10 ** e, 'FLOP/s')));
  const x0 = Math.max(10 ** XMIN, 10 ** bottom / bandwidth), line = [x0, ridge, 10 ** XMAX].map((x) => `${px(x)},${py(roof(x))}`);
  parts.push(s('polygon', {class: 'rf-memory', points: `${px(x0)},${H - BOTTOM} ${line[0]} ${line[1]} ${px(ridge)},${H - BOTTOM}`}),
    s('polyline', {class: 'rf-roof', points: line.join(' ')}),
    s('line', {class: 'rf-ridge', x1: px(ridge), x2: px(ridge), y1: py(peak), y2: H - BOTTOM}),
    s('text', {class: 'rf-note', x: px(ridge) - 6, y: H - BOTTOM - 44, 'text-anchor': 'end'}, '← waits for memory'),
    s('text', {class: 'rf-note', x: px(ridge) + 6, y: H - BOTTOM - 44}, 'waits for compute →'),
    s('text', {class: 'rf-note', x: px(ridge) + 6, y: H - BOTTOM - 30}, `ridge: ${num(Number(ridge.toPrecision(3)))} FLOP/B`),
    s('text', {class: 'rf-tick', x: (LEFT + W - RIGHT) / 2, y: H - 6, 'text-anchor': 'middle'}, 'FLOP per byte moved'),
    s('text', {class: 'rf-tick', x: LEFT - 5, y: 12, 'text-anchor': 'end'}, 'at most'));
  for (const phase of ['decode', 'prefill']) {
    const {ops} = bounds[phase], lane = phase === 'decode' ? H - BOTTOM - 12 : TOP - 8;
    const places = spread(ops.map((op) => px(op.intensity)), LEFT + 10, W - RIGHT - 8);
    ops.forEach((op, i) => {
      const x = px(op.intensity), y = py(roof(op.intensity)), r = 3 + 13 * Math.sqrt(op.share);
      const mark = phase === 'decode' ? s('circle', {cx: x, cy: y, r}) : s('rect', {x: x - r * 0.89, y: y - r * 0.89, width: r * 1.77, height: r * 1.77});
      parts.push(s('g', {class: `rf-op rf-${phase}`, 'data-op': op.name, 'data-phase': phase, onclick: () => pick(op.name, phase),
        onmouseenter: (e) => hover(op.name, e), onmouseleave: (e) => hover(null, e)},
      s('title', {}, `${OPS[op.name][1]}, ${phase}: ${share(op.share)} of the step`), s('line', {x1: x, y1: y, x2: places[i], y2: lane}), mark,
      s('text', {x: places[i], y: lane + 4, 'text-anchor': 'middle'}, OPS[op.name][0])));
    });
  }
  return s('svg', {class: 'rf-plot', viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': 'Roofline: FLOP per second at most, over FLOP per byte'}, parts);
}

function sentence(state, phase, b) {
  const tokens = phase === 'decode' ? state.batch : state.prefill;
  const what = phase === 'decode' ? `${num(state.batch)} decode${state.batch > 1 ? 's' : ''} at ${num(state.context)} tokens` : `A prompt of ${num(state.prefill)} tokens`;
  const why = b.memory ? `${share(b.waits)} of it waits for memory (bytes: ${share(b.weights)} weights, ${share(b.kv)} K and V)`
    : `${share(1 - b.waits)} of it waits for compute`;
  return [h('b', {class: `rf-word-${phase}`}, `${phase === 'decode' ? '●' : '■'} ${what}`), `: ${time(b.seconds)} at least, ${rate(tokens / b.seconds)} tokens/s at most; ${why}.`];
}

function detail(op, phase, peak, bandwidth, layers) {
  if (!op) return ['Click an operation, in the picture or in the table, to see where its time comes from.'];
  const [f, w, kv, act] = op.cost, b = moved(op.cost), slow = op.memory ? `${si(b, 'B')} ÷ ${si(bandwidth, 'B/s')}` : `${si(f, 'FLOP')} ÷ ${si(peak, 'FLOP/s')}`;
  return [h('b', {}, `${OPS[op.name][0]} ${OPS[op.name][1]}, ${phase}`), ` FLOPs: ${OPS[op.name][2]}${op.name === 'lm_head' ? '' : `, in ${layers} layers`} = ${si(f, 'FLOP')}. `,
    `Bytes: ${si(w, 'B')} weights + ${si(kv, 'B')} K and V + ${si(act, 'B')} activations = ${si(b, 'B')}. `,
    `${num(Number(op.intensity.toPrecision(3)))} FLOP per byte is ${op.memory ? 'left' : 'right'} of the ridge at ${num(Number((peak / bandwidth).toPrecision(3)))}: `,
    h('b', {}, `it waits for ${op.memory ? 'memory' : 'compute'}, ${slow} = ${time(op.seconds)}.`)];
}

function opTable(b, pick, hover) {
  const head = ['', 'operation', 'share', 'time', 'FLOP/B', 'waits for'].map((t, i) => h('th', {class: i > 2 && i < 5 ? 'li-num' : null, scope: 'col'}, t));
  const rows = b.ops.map((op) => h('tr', {class: 'rf-row', 'data-op': op.name, onclick: () => pick(op.name),
    onmouseenter: (e) => hover(op.name, e), onmouseleave: (e) => hover(null, e)},
  h('td', {}, h('button', {type: 'button', class: 'rf-letter', title: `${OPS[op.name][1]} (keys ↑ ↓)`, 'aria-keyshortcuts': 'ArrowUp ArrowDown'}, OPS[op.name][0])), h('td', {}, OPS[op.name][1]),
  h('td', {class: 'rf-share'}, h('span', {class: 'rf-bar', style: {width: `${Math.max(1, 48 * op.share)}px`}}), share(op.share)),
  h('td', {class: 'li-num'}, time(op.seconds)), h('td', {class: 'li-num'}, num(Number(op.intensity.toPrecision(2)))), h('td', {}, op.memory ? 'memory' : 'compute')));
  return h('table', {class: 'li-table rf-table'}, h('thead', {}, h('tr', {}, head)), h('tbody', {}, rows));
}

const COUNTS = (low, high) => { const out = []; for (let n = low; n <= high; n *= 2) out.push(n, ...(n > 1 && n < high ? [n * 1.5] : [])); return out; };
const SCALES = {batch: COUNTS(1, 1024), context: COUNTS(128, 131072), prefill: COUNTS(16, 32768)};
const PRESETS = [['1 user', {batch: 1, context: 1024, prefill: 512}], ['32 users', {batch: 32, context: 4096, prefill: 2048}],
  ['256 users', {batch: 256, context: 1024, prefill: 8192}], ['long', {batch: 4, context: 131072, prefill: 32768}]];
const FIELDS = ['model', 'hardware', 'dtype', 'batch', 'context', 'prefill'];

function countSlider(label, key, state, change) {
  const scale = [...new Set([...SCALES[key], state[key]])].sort((a, b) => a - b);
  const made = slider({label, min: 0, max: scale.length - 1, value: scale.indexOf(state[key]), format: (i) => num(scale[i]), onInput: (i) => change({[key]: scale[i]})});
  made.el.dataset.field = key;
  return {el: made.el, set(v) {
    if (!scale.includes(v)) { scale.push(v); scale.sort((a, b) => a - b); made.el.querySelector('input').max = scale.length - 1; }
    made.set(scale.indexOf(v));
  }};
}

function render({model, el}) {
  const root = mount(el, 'roofline', 'Roofline explorer'), state = Object.fromEntries(FIELDS.map((key) => [key, model.get(key)]));
  let data = model.get('data'), on = 'attention', over = null, phase = 'decode', saving = false;
  const save = settle(() => { saving = true; for (const key of FIELDS) model.set(key, state[key]); saving = false; model.save_changes(); });
  const change = (changes, keep = true) => { Object.assign(state, changes); for (const key of Object.keys(changes)) controls[key]?.set(state[key]); draw(); if (keep) save(); };
  const names = (list) => list.map(({name}) => [name, name]);
  const controls = {
    model: select({label: 'model', options: names(data.models), value: state.model, onChange: (v) => change({model: v})}),
    hardware: select({label: 'machine', options: names(data.hardware), value: state.hardware, onChange: (v) => change({hardware: v})}),
    dtype: select({label: 'type', options: Object.keys(DTYPES).map((d) => [d, d]), value: state.dtype, onChange: (v) => change({dtype: v})}),
    batch: countSlider('decodes', 'batch', state, change), context: countSlider('context of each', 'context', state, change),
    prefill: countSlider('prompt', 'prefill', state, change)};
  const measure = button('measure', () => { measure.disabled = true; model.send({ask: 'measure'}); }, {title: 'Measure the ceilings of the machine that the kernel runs on, about two seconds'});
  const say = h('div', {class: 'li-big rf-say', 'aria-live': 'polite'}), fits = h('div', {class: 'rf-fits'}), plot = h('div', {class: 'rf-left'}), table = h('div', {'aria-keyshortcuts': 'ArrowUp ArrowDown'});
  const strip = h('div', {class: 'li-panel rf-detail'}), more = h('div', {class: 'rf-more'});
  const pick = (name, inPhase = phase) => { on = on === name && inPhase === phase ? null : name; if (inPhase === phase) mark(); else setPhase(inPhase); };
  let pointer = '';
  const where = (e) => `${e.screenX} ${e.screenY}`;
  const hover = (name, e) => { if (where(e) !== pointer) { over = name; mark(); } };      // a node drawn anew under a pointer at rest is no hover
  root.addEventListener('mousemove', (e) => { pointer = where(e); });
  const tabs = ['decode', 'prefill'].map((p) => button(p === 'decode' ? '● decode' : '■ prefill', () => setPhase(p), {title: `Table of the ${p} step`, key: p === 'decode' ? '1' : '2'}));
  const setPhase = (p) => { phase = p; over = null; draw(); };
  let bounds = {}, peak = 1, bandwidth = 1, config = {};

  const showDetail = () => strip.replaceChildren(h('p', {}, detail(bounds[phase].ops.find((op) => op.name === (over ?? on)), phase, peak, bandwidth, config.num_layers)));
  function mark() {                       // nothing is made anew: what the pointer is over stays where it is
    for (const node of root.querySelectorAll('[data-op]')) {
      node.classList.toggle('rf-over', node.dataset.op === over);
      node.classList.toggle('rf-on', node.dataset.op === on);
      node.querySelector('.rf-letter')?.setAttribute('aria-pressed', String(node.dataset.op === on));
    }
    showDetail();
  }
  function draw() {
    config = data.models.find((m) => m.name === state.model) ?? data.models[0];
    const machine = data.hardware.find((m) => m.name === state.hardware) ?? data.hardware[0];
    peak = state.dtype === 'float32' ? machine.float32 : machine.bfloat16;
    bandwidth = machine.bandwidth;
    bounds = {decode: stepBound(opCosts(config, Array(state.batch).fill(1), Array(state.batch).fill(state.context), state.dtype), peak, bandwidth),
      prefill: stepBound(opCosts(config, [state.prefill], [state.prefill], state.dtype), peak, bandwidth)};
    say.replaceChildren(...['decode', 'prefill'].map((p) => h('p', {'data-phase': p, 'data-seconds': bounds[p].seconds, 'data-memory': bounds[p].waits}, sentence(state, p, bounds[p]))));
    const size = DTYPES[state.dtype], weights = config.parameters * size;
    const kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim * size * state.batch * state.context, over1 = machine.memory > 0 && weights + kv > machine.memory;
    fits.className = `rf-fits${over1 ? ' rf-over-memory' : ''}`;
    fits.textContent = `${machine.name}: ${si(bandwidth, 'B/s')}, ${si(peak, 'FLOP/s')}. In memory: ${si(weights, 'B')} weights + ${si(kv, 'B')} K and V${machine.memory ? ` of ${si(machine.memory, 'B')}` : ''}${over1 ? ': DOES NOT FIT' : ''}.`;
    plot.replaceChildren(drawPlot(bounds, peak, bandwidth, pick, hover));
    table.replaceChildren(opTable(bounds[phase], pick, hover));
    tabs.forEach((tab, i) => tab.setAttribute('aria-pressed', String((i === 0) === (phase === 'decode'))));
    mark();
    more.replaceChildren(h('p', {class: 'li-muted'}, `${machine.name}: ${machine.source || 'ceilings as given'}`), ...['decode', 'prefill'].flatMap((p) => [h('h4', {}, p), h('table', {class: 'li-table', 'data-table': p}, h('tbody', {}, h('tr', {}, ['operation', 'FLOPs', 'bytes: weights', 'K and V', 'activations', 'FLOP per byte', 'time', 'waits for'].map((t) => h('th', {}, t))),
      bounds[p].ops.map((op) => h('tr', {'data-row': op.name, 'data-cost': op.cost.join(' '), 'data-seconds': op.seconds}, h('td', {}, OPS[op.name][1]), op.cost.map((x) => h('td', {class: 'li-num'}, num(x))),
        h('td', {class: 'li-num'}, num(op.intensity)), h('td', {class: 'li-num'}, time(op.seconds)), h('td', {}, op.memory ? 'memory' : 'compute')))))]));
  }
  const step = (by) => { const list = Object.keys(OPS), i = list.indexOf(on); on = list[clamp(i + by, 0, list.length - 1)]; over = null; mark(); };
  const keys = {ArrowDown: [() => step(1), 'next operation'], ArrowUp: [() => step(-1), 'operation before'], Escape: [() => { on = over = null; mark(); }, 'unpin'],
    1: [() => setPhase('decode'), 'decode'], 2: [() => setPhase('prefill'), 'prefill']};
  bindKeys(root, keys);
  root.append(say, h('div', {class: 'li-row rf-top'}, controls.model.el, controls.hardware.el, controls.dtype.el, model.get('live') ? measure : null,
    PRESETS.map(([text, values]) => button(text, () => change(values)))),
  h('div', {class: 'li-row rf-sliders'}, controls.batch.el, controls.context.el, controls.prefill.el), fits,
  h('div', {class: 'rf-main li-stack'}, plot, h('div', {class: 'rf-right'}, h('div', {class: 'li-row'}, tabs, button('clear', keys.Escape[0], {title: 'Unpin', key: 'Escape'})), table)),
  strip, h('details', {}, h('summary', {}, 'All numbers as a table'), more));
  const fromModel = () => { if (!saving) change(Object.fromEntries(FIELDS.map((key) => [key, model.get(key)])), false); };
  const newData = () => { data = model.get('data'); controls.model.setOptions(names(data.models)); controls.hardware.setOptions(names(data.hardware)); measure.disabled = false; fromModel(); };
  const events = FIELDS.map((key) => `change:${key}`).join(' ');
  model.on(events, fromModel);
  model.on('change:data', newData);
  draw();
  return () => { model.off(events, fromModel); model.off('change:data', newData); };
}

export default {render};
