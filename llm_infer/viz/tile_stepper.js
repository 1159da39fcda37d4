// Online softmax, tile by tile: every number shown was computed in Python (tile_stepper.py) and is only placed here.
import {h, s, mount, transport, bindKeys, slider, select, button, bytes, num, clamp, owner, tip, settle} from './common.js';

const two = (x) => (x === null || x === undefined ? '−∞' : x.toFixed(2).replace('-', '−'));
const three = (x) => x.toFixed(3).replace('-', '−');
const shown = (text) => text.replace(/ /g, '␣').replace(/\n/g, '⏎');

const WORDS = [['m', 'running max'], ['l', 'running sum of exp(s − m)'], ['acc', 'the same sum of values'], ['f', 'shrinks l and acc when m rises'], ['lse', 'm + log l'], ['splits', 'parts read side by side']];

// A vector as a strip of cells: blue above zero, orange below, pale near it.
function strip(values, most, dim, pick) {
  return h('div', {class: 'ts-strip', role: 'img', 'aria-label': values ? `${values.length} numbers` : 'nothing yet',
    onclick: (event) => { const i = event.target.dataset.i; if (i !== undefined) pick(Number(i)); }},
    values?.map((v, i) => h('i', {'data-i': i, class: i === dim ? 'ts-dim' : null, title: `dimension ${i}: ${num(v)}`,
      style: {background: `color-mix(in srgb, var(${v < 0 ? '--li-o4' : '--li-o5'}) ${Math.round(100 * Math.min(1, Math.abs(v) / most))}%, var(--li-bg))`}})));
}

// The chart of the row: a bar per key, blocks above, tokens below, the running max as a staircase.
function chart(data, row, run, at, pinned, on) {
  const n = row.scores.length, width = 880, left = 34, cell = (width - left - 2) / n, top = 22, height = 66, bottom = top + height;
  const low = Math.min(...row.scores), high = Math.max(...row.scores), span = high - low || 1;
  const x = (i) => left + i * cell, y = (v) => bottom - 6 - ((v - low) / span) * (height - 12);
  const taken = new Map();
  run.rounds.forEach((tiles, r) => tiles.forEach((tile, k) => { if (tile) for (let i = tile.start; i < tile.stop; i++) taken.set(i, [r, k]); }));
  const blocks = data.block_ids.map((id, b) => {
    const from = x(b * data.block_size), to = x(Math.min(n, (b + 1) * data.block_size));
    return s('g', {}, s('path', {class: 'ts-bracket', d: `M${from + 1} 18 V14 H${to - 1} V18`}),
      s('text', {x: (from + to) / 2, y: 11, 'text-anchor': 'middle'}, to - from > 60 ? `block ${id}` : `${id}`));
  });
  const bars = row.scores.map((v, i) => {
    const [r, k] = taken.get(i), state = r === at ? 'now' : r < at ? 'done' : 'next';
    return s('g', {class: `ts-key ts-${state}${i === pinned ? ' ts-pinned' : ''}`, 'data-i': i, onclick: () => on.pin(i), onmouseenter: (e) => on.hover(i, e), onmouseleave: on.leave},
      s('rect', {class: 'ts-back', x: x(i), y: top, width: cell, height: height + 62}),
      s('rect', {class: 'ts-bar', x: x(i) + 1, y: y(v), width: Math.max(1, cell - 2), height: bottom - y(v), style: `fill:${owner(k).fill}`}),
      cell < 9 ? null : s('text', {class: 'ts-token', transform: `translate(${x(i) + cell / 2 + 3} ${bottom + 4}) rotate(-90)`, 'text-anchor': 'end'}, shown(data.texts[i]).slice(0, 9)));
  });
  const lines = run.rounds.slice(0, at + 1).flatMap((tiles, r) => tiles.map((tile) => tile &&
    s('path', {class: 'ts-max', d: `M${x(tile.start)} ${tile.old_max === null ? y(tile.max) : y(tile.old_max)} V${y(tile.max)} H${x(tile.stop)}`})));
  return s('svg', {viewBox: `0 0 ${width} ${bottom + 56}`, class: 'ts-chart', role: 'img', 'aria-label': 'scores of the row'}, blocks, bars, lines,
    s('text', {x: 0, y: y(high) + 4}, two(high)), s('text', {x: 0, y: y(low) + 2}, two(low)));
}

function render({model, el}) {
  const root = mount(el, 'tile_stepper', 'Tile stepper: online softmax'), data = model.get('data'), rows = [...data.rows], bubble = tip(root);
  let {row = 0, tile_size = data.tile_sizes[0], num_splits = data.splits[0]} = model.get('choice') ?? {}, at = model.get('at') ?? 0, focus = 0, dim = rows[0].engine.reduce((b, v, i, e) => (Math.abs(v) > Math.abs(e[b]) ? i : b), 0), pinned = null, hovered = null;
  row = clamp(row, 0, rows.length - 1);
  const run = () => rows[row].runs[`${tile_size}/${num_splits}`], count = () => run().says.length;
  const names = () => rows.map((r, i) => [String(i), `layer ${r.layer}, head ${r.head}`]);
  const save = settle(() => { model.set('at', at); model.set('choice', {row, tile_size, num_splits}); model.save_changes(); });

  const says = h('p', {class: 'li-big', 'aria-live': 'polite'});
  const bar = transport({count: count(), at, label: 'step', onStep: (to) => { at = to; draw(); save(); }});
  const pickRow = select({label: 'row', options: names(), value: String(row), onChange: (v) => choose({row: Number(v)})});
  const sizes = slider({label: 'keys a tile', key: '+ -', min: 0, max: data.tile_sizes.length - 1, value: data.tile_sizes.indexOf(tile_size), format: (i) => String(data.tile_sizes[i]),
    onInput: (i) => choose({tile_size: data.tile_sizes[i]})});
  const cuts = slider({label: 'splits', key: '[ ]', min: 0, max: data.splits.length - 1, value: data.splits.indexOf(num_splits), format: (i) => String(data.splits[i]),
    onInput: (i) => choose({num_splits: data.splits[i]})});
  const number = (label, max) => h('input', {type: 'number', min: 0, max, value: 0, 'aria-label': label, class: 'ts-number'});
  const layer = number('another layer', data.num_layers - 1), head = number('another head', data.num_heads - 1), problem = h('span', {class: 'li-muted'});
  const other = h('span', {class: 'li-row ts-other'}, h('span', {class: 'li-muted'}, 'another: layer'), layer, h('span', {class: 'li-muted'}, 'head'), head,
    button('Show', () => { problem.textContent = ''; model.send({ask: 'row', layer: Number(layer.value), head: Number(head.value)}); }, {title: 'Show this layer and head'}), problem);
  if (!model.get('live')) other.replaceChildren(h('span', {class: 'li-muted'}, 'other layers and heads need a running kernel'));
  const picture = h('div', {class: 'ts-picture'}), detail = h('p', {class: 'ts-detail li-mono'}), formulas = h('div', {class: 'ts-formulas'}), states = h('div', {}), memory = h('div', {class: 'ts-memory li-row'});
  const all = h('table', {class: 'li-table'});
  root.append(h('div', {class: 'ts-top'}, says, h('span', {class: 'li-badge'}, `recorded · ${data.model ?? 'model'}`)), bar.el,
    h('div', {class: 'li-row ts-controls'}, pickRow.el, sizes.el, cuts.el, other),
    h('section', {class: 'li-panel'}, h('h4', {}, `Scores of the query “${shown(data.texts.at(-1))}” over its ${data.texts.length} cached keys, read block by block; the line is the running max m`), picture, detail),
    h('p', {class: 'ts-words li-muted'}, WORDS.map(([name, words], i) => [i ? ' · ' : '', h('b', {}, name), ` ${words}`])),
    h('div', {class: 'ts-two li-stack'}, h('section', {class: 'li-panel'}, h('h4', {}, 'This step in numbers'), formulas), h('section', {class: 'li-panel'}, h('h4', {}, 'What is kept'), states)),
    h('section', {class: 'li-panel'}, memory), h('details', {}, h('summary', {}, 'All steps as a table'), all));

  function choose(change) {
    const share = count() > 1 ? at / (count() - 1) : 0;
    ({row, tile_size, num_splits} = {row, tile_size, num_splits, ...change});
    pickRow.set(String(row)); sizes.set(data.tile_sizes.indexOf(tile_size)); cuts.set(data.splits.indexOf(num_splits));
    at = Math.round(share * (count() - 1));
    focus = clamp(focus, 0, num_splits - 1);
    bar.stop(); bar.setCount(count()); bar.set(at);
    draw(); save();
  }
  const before = (k) => { for (let r = Math.min(at, run().rounds.length) - 1; r >= 0; r--) if (run().rounds[r][k]) return run().rounds[r][k]; return null; };
  const latest = (k) => (at < run().rounds.length && run().rounds[at][k]) || before(k);

  function line(name, formula, value, why) {
    return h('tr', {}, h('th', {}, name), h('td', {class: 'li-mono'}, formula, ' = ', h('b', {}, value)), h('td', {class: 'li-muted'}, why));
  }
  function numbers() {
    const r = run(), rounds = r.rounds.length, own = rows[row];
    if (at < rounds) {
      const tile = r.rounds[at][focus], old = before(focus);
      if (!tile) return h('p', {class: 'li-muted'}, `Split ${focus} has no tile left: its program is done and waits for nobody.`);
      const best = own.scores.slice(tile.start, tile.stop).indexOf(Math.max(...own.scores.slice(tile.start, tile.stop))) + tile.start;
      const added = tile.weights.reduce((a, b) => a + b, 0), oldAcc = old ? old.acc[dim] : 0, f = three(tile.factor);
      return h('table', {class: 'li-table'}, h('tbody', {},
        line('tile', `max of scores ${tile.start}–${tile.stop - 1}`, two(tile.tile_max), `at “${shown(data.texts[best])}”`),
        line('m', `max(${two(tile.old_max)}, ${two(tile.tile_max)})`, two(tile.max), tile.max === tile.old_max ? 'stays' : 'rises'),
        line('f', `exp(${two(tile.old_max)} − ${two(tile.max)})`, f, tile.factor === 1 ? 'nothing kept changes' : old ? 'shrinks l and acc' : 'nothing is kept yet'),
        line('l', `${f} × ${three(old?.sum ?? 0)} + ${three(added)}`, three(tile.sum), 'Σ exp(s − m)'),
        line(`acc[${dim}]`, `${f} × ${three(oldAcc)} + ${three(tile.acc[dim] - tile.factor * oldAcc)}`, three(tile.acc[dim]), 'Σ exp(s − m) v')));
    }
    const end = latest(focus), last = at === rounds + 1;
    if (last) return h('table', {class: 'li-table'}, h('tbody', {}, r.lse.map((lse, k) => line(`split ${k}`, `exp(${two(lse < -1e29 ? null : lse)} − ${two(Math.max(...r.lse))})`, three(r.merge[k]), 'its weight')),
      line(`out[${dim}]`, 'weighted mean of the parts', three(r.out[dim]), `the engine: ${three(own.engine[dim])}`)));
    if (!end) return h('p', {class: 'li-muted'}, `Split ${focus} got no key: it leaves zeros and an lse of −10³⁰, a weight of 0.`);
    return h('table', {class: 'li-table'}, h('tbody', {}, line(`out[${dim}]`, `acc[${dim}] / l = ${three(end.acc[dim])} / ${three(end.sum)}`, three(r.parts[focus][dim]), num_splits === 1 ? `the engine: ${three(own.engine[dim])}` : 'of this part'),
      line('lse', `m + log(l) = ${two(end.max)} + ${two(Math.log(end.sum))}`, two(r.lse[focus]), num_splits === 1 ? 'for a merge' : 'for the merge')));
  }
  function kept() {
    const r = run(), rounds = r.rounds.length, most = Math.max(...r.rounds.flat().filter(Boolean).flatMap((t) => t.acc.map(Math.abs)), 1e-9);
    const pick = (i) => { dim = i; draw(); }, outMost = Math.max(...rows[row].engine.map(Math.abs)), done = at >= rounds;
    const body = r.parts.map((part, k) => {
      const tile = latest(k), now = at < rounds && r.rounds[at][k];
      return h('tr', {class: `ts-split${k === focus ? ' ts-focus' : ''}`, 'data-split': k},
        h('th', {}, h('button', {type: 'button', class: 'ts-name', style: {background: owner(k).fill, color: owner(k).ink}, 'aria-pressed': String(k === focus), title: 'Show its numbers', onclick: () => { focus = k; draw(); }},
          num_splits === 1 ? 'row' : `split ${k}`)),
        h('td', {class: 'li-num'}, two(tile ? tile.max : null)), h('td', {class: 'li-num'}, tile ? two(tile.sum) : '0'),
        h('td', {class: 'li-num'}, now ? `× ${two(tile.factor)}` : done ? '÷ l' : 'done'),
        h('td', {}, done ? strip(part, outMost, dim, pick) : strip(tile?.acc ?? part, most, dim, pick)));
    });
    const one = num_splits === 1 && latest(0), result = at === count() - 1 ? r.out : one ? one.acc.map((v) => v / one.sum) : null;
    const named = at === count() - 1 ? 'attention of the row' : one ? 'acc / l: attention so far' : 'attention: after the merge';
    return h('table', {class: 'ts-states'}, h('thead', {}, h('tr', {}, ['', 'm', 'l', 'factor', done ? 'acc / l' : 'acc'].map((t) => h('th', {}, t)))), h('tbody', {}, body,
      h('tr', {class: 'ts-result'}, h('th', {colspan: 4}, named), h('td', {}, strip(result, outMost, dim, pick))),
      h('tr', {}, h('th', {colspan: 4}, 'the engine\'s own'), h('td', {}, strip(rows[row].engine, outMost, dim, pick)))));
  }
  function about(i) {
    if (i === null) return 'Click a key for its slot and weight; click a number of a vector for its sum.';
    const b = Math.floor(i / data.block_size), off = i % data.block_size;
    return `position ${i} “${shown(data.texts[i])}” · block ${data.block_ids[b]}:${off}, slot ${data.block_ids[b] * data.block_size + off} · score ${three(rows[row].scores[i])} · weight in the end ${three(rows[row].weights[i])}`;
  }
  function draw() {
    const r = run(), seen = at < r.rounds.length ? r.rounds.slice(0, at + 1).flat().reduce((n, t) => n + (t ? t.stop - t.start : 0), 0) : data.texts.length, full = data.texts.length;
    says.textContent = r.says[at];
    picture.replaceChildren(chart(data, rows[row], r, at, pinned, {pin: (i) => { pinned = pinned === i ? null : i; draw(); },
      hover: (i, e) => { hovered = i; detail.textContent = about(i); bubble.show(e.clientX, e.clientY, `${shown(data.texts[i])}: ${two(rows[row].scores[i])}`); },
      leave: () => { hovered = null; bubble.hide(); detail.textContent = about(pinned); }}));
    detail.textContent = about(pinned ?? hovered);
    formulas.replaceChildren(num_splits > 1 && at <= r.rounds.length ? h('p', {class: 'li-muted'}, `split ${focus}: click another at the right`) : '', numbers());
    states.replaceChildren(kept());
    const meter = (name, n, of, why = '') => [h('span', {class: 'ts-meter-name'}, name), h('span', {class: 'li-bar ts-meter'}, h('span', {class: 'li-move', style: {width: `${100 * n / of}%`, background: 'var(--li-o4)'}})), h('span', {class: 'ts-bytes'}, h('span', {class: 'li-mono'}, bytes(n)), why)];
    memory.replaceChildren(h('b', {}, 'Scores moved'), ...meter('op by op', seen * data.bytes.row, full * data.bytes.row), ...meter('tiled', 0, 1, ', never written'),
      h('span', {class: 'li-muted'}, `whole layer op by op: ${bytes(data.bytes.prompt)}`));
    all.replaceChildren(h('thead', {}, h('tr', {}, h('th', {}, 'step'), h('th', {}, 'what happens'))), h('tbody', {}, r.says.map((words, i) => h('tr', {class: i === at ? 'ts-here' : null}, h('td', {}, String(i + 1)), h('td', {}, words)))));
  }
  const step = (list, value, way) => list[clamp(list.indexOf(value) + way, 0, list.length - 1)];
  bindKeys(root, {...bar.keys, '+': [() => choose({tile_size: step(data.tile_sizes, tile_size, 1)}), 'larger tiles'], '-': [() => choose({tile_size: step(data.tile_sizes, tile_size, -1)}), 'smaller tiles'],
    ']': [() => choose({num_splits: step(data.splits, num_splits, 1)}), 'more splits'], '[': [() => choose({num_splits: step(data.splits, num_splits, -1)}), 'fewer splits'],
    Escape: [() => { pinned = null; draw(); }, 'unpin the key']});
  const onAt = () => { if (model.get('at') !== at) bar.set(model.get('at')); };
  const onMessage = (message) => {
    if (message.error) problem.textContent = message.error;
    if (!message.row) return;
    rows.push(message.row);
    pickRow.setOptions(names());
    choose({row: rows.length - 1});
  };
  model.on('change:at', onAt);
  model.on('msg:custom', onMessage);
  draw();
  return () => { bar.stop(); model.off('change:at', onAt); model.off('msg:custom', onMessage); };
}

export default {render};
