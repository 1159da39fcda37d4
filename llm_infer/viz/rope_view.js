// q and k of two real tokens, turned by the model's own table: a dial for each pair, the score over the distance, and Llama 3.1's scaling.
import {h, s, mount, transport, bindKeys, slider, select, button, check, num, clamp, settle} from './common.js';

const int16 = (text) => new Int16Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const fixed = (x, digits = 2) => (x < 0 ? '−' : '') + Math.abs(x).toFixed(digits);
const wave = (tokens) => (tokens < 100 ? tokens.toFixed(1) : num(Math.round(tokens)));

// The numbers of one rotated head: the first `rotary_dim` turned as rows of the table say, the rest as they are.
function turned(x, row, half) {
  const out = Float64Array.from(x);
  for (let i = 0; i < half; i++) {
    out[i] = x[i] * row[i] - x[i + half] * row[i + half];
    out[i + half] = x[i + half] * row[i] + x[i] * row[i + half];
  }
  return out;
}

function reader(data) {
  const table = int16(data.table), width = data.rotary_dim, half = width / 2, group = data.num_heads / data.num_kv_heads;
  const layers = data.layers.map((layer) => ({...layer, q: int16(layer.q), k: int16(layer.k)}));
  const row = (position) => Float64Array.from(table.subarray(position * width, (position + 1) * width), (x) => x / 32767);
  const head = (numbers, heads, token, i, unit) => {
    const start = (token * heads + i) * data.head_dim;
    return Float64Array.from(numbers.subarray(start, start + data.head_dim), (x) => x * unit);
  };
  const q = (at) => head(layers[at.layer].q, data.num_heads, at.query, at.head, layers[at.layer].unit);
  const k = (at) => head(layers[at.layer].k, data.num_kv_heads, at.key, Math.floor(at.head / group), layers[at.layer].unit);
  // Each pair's share of the score of a query at `m` and a key at `n`, and the rotated vectors.
  const parts = (at, m, n) => {
    const a = turned(q(at), row(m), half), b = turned(k(at), row(n), half), shares = new Float64Array(half);
    for (let i = 0; i < half; i++) shares[i] = (a[i] * b[i] + a[i + half] * b[i + half]) * data.scale;
    let score = shares.reduce((x, y) => x + y, 0);
    for (let i = width; i < data.head_dim; i++) score += a[i] * b[i] * data.scale;
    return {a, b, shares, score};
  };
  return {half, group, parts};
}

const SIZE = 46, C = SIZE / 2, R = 20;

function dial(pair, label, onPick, onHover) {
  const hand = (name) => s('line', {x1: C, y1: C, x2: C, y2: C, class: `li-hand ${name}`});
  const k = hand('li-k'), q = hand('li-q'), bar = s('rect', {y: SIZE + 1, height: 4, class: 'li-share'});
  const el = h('button', {type: 'button', class: 'li-dial', 'data-pair': pair, onclick: () => onPick(pair), onmouseenter: () => onHover(pair),
    onmouseleave: () => onHover(null), onfocus: () => onHover(pair), onblur: () => onHover(null)},
  s('svg', {viewBox: `0 0 ${SIZE} ${SIZE + 6}`, 'aria-hidden': 'true'}, s('circle', {cx: C, cy: C, r: R, class: 'li-rim'}), k, q,
    s('line', {x1: C, x2: C, y1: SIZE, y2: SIZE + 6, class: 'li-rim li-middle'}), bar), h('span', {}, label));
  const point = (line, x, y, largest) => {
    const norm = Math.hypot(x, y), length = norm ? R * Math.sqrt(norm / largest) / norm : 0;
    line.setAttribute('x2', (C + x * length).toFixed(2));
    line.setAttribute('y2', (C - y * length).toFixed(2));
  };
  return {el, show(a, b, half, most, share, mostShare) {
    point(q, a[pair], a[pair + half], most.q);
    point(k, b[pair], b[pair + half], most.k);
    const wide = Math.min(1, Math.abs(share) / mostShare) * C;
    bar.setAttribute('x', (share < 0 ? C - wide : C).toFixed(2));
    bar.setAttribute('width', wide.toFixed(2));
    bar.classList.toggle('li-minus', share < 0);
    el.setAttribute('aria-label', `pair ${pair}, once round in ${label} tokens, ${fixed(share)} of the score`);
  }};
}

// Axis ticks at round numbers.
function round(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= raw);
  const out = [];
  for (let x = Math.ceil(low / step) * step; x <= high + 1e-9; x += step) out.push(Math.abs(x) < 1e-9 ? 0 : x);
  return out;
}

const NUM_SHOWN = 8;                // dials at first: of the pairs that change the score the most
const W = 430, H = 340, LEFT = 34, RIGHT = 8, TOP = 8, BOTTOM = 30;

function curve(count, onPick) {
  const x = (d) => LEFT + (W - LEFT - RIGHT) * d / (count - 1), grid = s('g', {}), total = s('polyline', {class: 'li-total'}), one = s('polyline', {class: 'li-one'});
  const dot = s('circle', {r: 5, class: 'li-dot'}), rule = s('line', {y1: TOP, y2: H - BOTTOM, class: 'li-rule'});
  const el = s('svg', {viewBox: `0 0 ${W} ${H}`, class: 'li-curve', role: 'img', onclick: (event) => {
    const box = el.getBoundingClientRect();
    onPick(clamp(Math.round(((event.clientX - box.left) / box.width * W - LEFT) / (W - LEFT - RIGHT) * (count - 1)), 0, count - 1));
  }}, grid, rule, one, total, dot);
  return {el, show(scores, shares, d) {
    const all = [...scores, ...shares], low = Math.min(0, ...all), high = Math.max(0, ...all), pad = (high - low) * .05 || 1;
    const y = (v) => H - BOTTOM - (H - TOP - BOTTOM) * (v - low + pad) / (high - low + 2 * pad);
    const line = (values) => values.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(' ');
    total.setAttribute('points', line(scores));
    one.setAttribute('points', line(shares));
    dot.setAttribute('cx', x(d)); dot.setAttribute('cy', y(scores[d]));
    rule.setAttribute('x1', x(d)); rule.setAttribute('x2', x(d));
    grid.replaceChildren(...round(low, high, 4).flatMap((v) => [s('line', {x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v), class: v === 0 ? 'li-zero' : 'li-gridline'}),
      s('text', {x: LEFT - 4, y: y(v) + 3.5, 'text-anchor': 'end'}, fixed(v, 0))]),
    ...round(0, count - 1, 8).map((v) => s('text', {x: x(v), y: H - BOTTOM + 13, 'text-anchor': 'middle'}, num(v))),
    s('text', {x: (LEFT + W) / 2, y: H - 3, 'text-anchor': 'middle'}, 'distance from the query back to the key, tokens'));
    el.setAttribute('aria-label', `score over the distance, now ${fixed(scores[d])} at distance ${d}`);
  }};
}

// Wavelengths before and after scaling, on a logarithmic axis, with the three bands.
function bands(scaling) {
  const {before, after, low, high, context, factor} = scaling, top = Math.log10(Math.max(...after) * 2), HB = 150;
  const x = (i) => LEFT + 6 + (W - LEFT - RIGHT - 100) * i / (before.length - 1), y = (v) => HB - BOTTOM - (HB - TOP - BOTTOM) * Math.log10(v) / top;
  const kind = (v) => (v < context / high ? 'kept' : v > context / low ? `${num(factor)} times slower` : 'blended');
  const band = (from, to, text, fill) => [s('rect', {x: LEFT, width: W - LEFT - RIGHT, y: y(to), height: Math.max(0, y(from) - y(to)), style: `fill: var(${fill})`, class: 'li-band'}),
    s('text', {x: W - RIGHT - 3, y: (y(from) + y(to)) / 2 + 4, 'text-anchor': 'end'}, text)];
  const lines = [1, 100, 1e4, 1e6].filter((v) => Math.log10(v) < top);
  return s('svg', {viewBox: `0 0 ${W} ${HB}`, class: 'li-bands', role: 'img', 'aria-label': `wavelengths of ${before.length} pairs before and after scaling`},
    band(1, context / high, 'fast: kept', '--li-h1'), band(context / high, context / low, 'blended', '--li-h3'), band(context / low, 10 ** top, `slow: ${num(factor)} times slower`, '--li-h1'),
    lines.map((v) => s('text', {x: LEFT - 4, y: y(v) + 3.5, 'text-anchor': 'end'}, v < 1e4 ? num(v) : `1e${Math.log10(v)}`)),
    before.map((v, i) => s('g', {'data-kind': kind(v)}, s('title', {}, `pair ${i}: ${wave(v)} → ${wave(after[i])} tokens, ${kind(v)}`),
      after[i] === v ? null : s('line', {x1: x(i), x2: x(i), y1: y(v), y2: y(after[i]), class: 'li-rule'}),
      s('circle', {cx: x(i), cy: y(v), r: 1.8, class: 'li-before'}), s('circle', {cx: x(i), cy: y(after[i]), r: 2.4, class: 'li-after'}))),
    s('text', {x: (LEFT + W) / 2, y: HB - 3, 'text-anchor': 'middle'}, 'pair; up: tokens for one turn'));
}

function render({model, el}) {
  const data = model.get('data'), {half, group, parts} = reader(data), distances = data.num_positions - data.num_starts + 1;
  const root = mount(el, 'rope_view', 'RoPE view');
  const at = {}, NAMES = ['at', 'distance', 'layer', 'head', 'query', 'key', 'pair'];
  for (const name of NAMES) at[name] = model.get(name);
  let hovered = null, scores = [], shares = [], order = [], all = false;

  const sentence = h('p', {class: 'li-big', 'aria-live': 'polite'}), detail = h('p', {class: 'li-detail', 'aria-live': 'polite'});
  const change = (name, value) => { at[name] = value; draw(!['at', 'distance', 'pair'].includes(name)); save(); };
  const save = settle(() => { for (const name of NAMES) model.set(name, at[name]); model.save_changes(); });
  const bar = transport({count: data.num_starts, at: at.at, label: 'key position', first: 0, fps: 8, onStep: (n) => change('at', n)});
  const token = (i) => `${i}: ${JSON.stringify(data.tokens[i])}`;
  const tokens = data.tokens.map((_, i) => [String(i), token(i)]);
  const pick = (label, name, options) => select({label, options, value: String(at[name]), onChange: (v) => change(name, Number(v))});
  const fields = {layer: pick('layer', 'layer', data.layers.map((l, i) => [String(i), String(l.layer)])),
    head: pick('head', 'head', Array.from({length: data.num_heads}, (_, i) => [String(i), `Q ${i} over K ${Math.floor(i / group)}`])),
    query: pick('query', 'query', tokens), key: pick('key', 'key', tokens)};
  const far = slider({label: 'distance', min: 0, max: distances - 1, value: at.distance, onInput: (d) => change('distance', d)});
  const further = (by) => { at.distance = clamp(at.distance + by, 0, distances - 1); far.set(at.distance); change('distance', at.distance); };
  const dials = data.wavelengths.map((w, i) => dial(i, wave(w), (p) => change('pair', at.pair === p ? -1 : p), (p) => { hovered = p; draw(); }));
  const plot = curve(distances, (d) => { far.set(d); change('distance', d); });
  const table = h('tbody', {}), legend = h('span', {});
  const every = check({label: `all ${half} pairs`, value: false, onChange: (v) => { all = v; draw(); }});

  root.append(
    h('p', {class: 'li-hint'}, h('b', {}, 'Move both tokens on (← →): the hands turn, the score stays. Move them apart (− +): the score changes.')),
    h('div', {class: 'li-row li-top'}, h('div', {class: 'li-grow'}, sentence), h('span', {class: 'li-badge', title: data.model}, 'real q and k')),
    bar.el,
    h('div', {class: 'li-row'}, Object.values(fields).map((f) => f.el), far.el, button('−', () => further(-1), {title: 'Key one token nearer', key: '-'}),
      button('+', () => further(1), {title: 'Key one token further away', key: 'Plus'})),
    h('div', {class: 'li-row li-main li-stack'},
      h('section', {class: 'li-panel li-dials'}, h('div', {class: 'li-row li-head'}, h('h4', {class: 'li-grow'}, 'A dial for a pair of numbers: ', h('span', {class: 'li-key-q'}, 'q'), ' and ',
        h('span', {class: 'li-key-k'}, 'k'), legend), every.el), h('div', {class: 'li-grid'}, dials.map((d) => d.el)), detail),
      h('section', {class: 'li-panel li-plots'}, h('h4', {}, `Score q·k / √${data.head_dim} over the distance`, h('span', {class: 'li-of-pair'}, ', ', h('span', {class: 'li-key-one'}, 'this pair\u2019s share'))), plot.el)),
    h('details', {}, h('summary', {}, `Another model, another question: how ${data.scaling.name.replace('Long contexts, ', '')} slows its slow pairs for long contexts`),
      h('h4', {}, 'Tokens for one turn of each pair, ', h('span', {class: 'li-key-before'}, 'before'), ' and ', h('span', {class: 'li-key-after'}, 'after scaling')), bands(data.scaling)),
    h('details', {}, h('summary', {}, 'The same as a table'), h('table', {class: 'li-table'}, h('thead', {}, h('tr', {}, ['pair', 'tokens for one turn', 'q', 'k', 'share'].map((t) => h('th', {}, t)))), table)));

  function draw(anew = false) {
    if (anew || !scores.length) {
      const far = Array.from({length: distances}, (_, d) => parts(at, d, 0));     // only the distance counts: the key may as well stand at 0
      scores = far.map((p) => p.score);
      shares = far.map((p) => p.shares);
      const ranges = dials.map((_, i) => { const own = shares.map((x) => x[i]); return Math.max(...own) - Math.min(...own); });
      order = ranges.map((_, i) => i).sort((a, b) => ranges[b] - ranges[a]);
    }
    const now = parts(at, at.at + at.distance, at.at), largest = (v) => Math.max(1e-9, ...dials.map((_, i) => Math.hypot(v[i], v[i + half])));
    const most = {q: largest(now.a), k: largest(now.b)}, mostShare = Math.max(1e-9, ...now.shares.map(Math.abs));
    const shown = hovered ?? (at.pair >= 0 ? at.pair : order[0]), d = at.distance, best = scores.indexOf(Math.max(...scores));
    const few = order.slice(0, NUM_SHOWN);
    if (at.pair >= 0 && !few.includes(at.pair)) few[few.length - 1] = at.pair;
    root.classList.toggle('li-few', !all);
    root.classList.toggle('li-one-pair', all || at.pair >= 0 || hovered !== null);
    legend.textContent = all ? '; beneath: share of the score, tokens for one turn' : '; beneath: tokens for one turn';
    dials.forEach((one, i) => {
      one.el.hidden = !all && !few.includes(i);
      one.show(now.a, now.b, half, most, now.shares[i], mostShare);
      one.el.classList.toggle('li-on', i === shown);
      one.el.setAttribute('aria-pressed', String(i === at.pair));
    });
    plot.show(scores, shares.map((x) => x[shown]), d);
    const ending = d === best ? 'higher than at any other distance' : `at distance ${best} it would be ${fixed(scores[best])}`;
    sentence.textContent = `${JSON.stringify(data.tokens[at.query])} at ${at.at + d} looks ${d} back at ${JSON.stringify(data.tokens[at.key])} at ${at.at}: score ${fixed(now.score)}, ${ending}.`;
    const turn = (360 * d / data.wavelengths[shown]) % 360, xy = (v) => `(${fixed(v[shown])}, ${fixed(v[shown + half])})`;
    detail.textContent = `Pair ${shown}, numbers ${shown} and ${shown + half}${at.pair === shown ? ', pinned' : at.pair < 0 && hovered === null ? ', which changes the score the most' : ''}: once round in ${wave(data.wavelengths[shown])} tokens, `
      + `so ${fixed(turn, 0)}° in ${d} ${d === 1 ? "token" : "tokens"}. q ${xy(now.a)} and k ${xy(now.b)} give ${fixed(now.shares[shown])} of the score of ${fixed(now.score)}.`;
    table.replaceChildren(...dials.map((_, i) => h('tr', {}, [i, wave(data.wavelengths[i]), `${fixed(now.a[i])}, ${fixed(now.a[i + half])}`,
      `${fixed(now.b[i])}, ${fixed(now.b[i + half])}`, fixed(now.shares[i])].map((t) => h('td', {class: 'li-num'}, t)))));
  }

  bindKeys(root, {...bar.keys, '+': [() => further(1), 'key one token further away'], '-': [() => further(-1), 'key one token nearer'],
    Escape: [() => { hovered = null; change('pair', -1); }, 'unpin the pair']});
  const follow = NAMES.map((name) => [`change:${name}`, () => {
    const value = model.get(name);
    if (value === at[name]) return;
    at[name] = value;
    if (name === 'at') bar.set(value); else if (name === 'distance') far.set(value); else fields[name]?.set(String(value));
    draw(true);
  }]);
  for (const [event, fn] of follow) model.on(event, fn);
  draw();
  return () => { bar.stop(); for (const [event, fn] of follow) model.off(event, fn); };
}

export default {render};
