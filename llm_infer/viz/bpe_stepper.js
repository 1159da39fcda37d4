// BPE, merge by merge. The merges and ranks come from Python (bpe_stepper.py); here they are replayed, forward and back.
import {h, s, mount, transport, bindKeys, select, button, num, clamp, settle} from './common.js';

// The 256 characters of a byte-level vocabulary, as in text/bpe.py, and back to bytes.
const BYTE_OF = new Map();
for (let byte = 0, extra = 256; byte < 256; byte++) {
  const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  BYTE_OF.set(String.fromCodePoint(printable ? byte : extra++), byte);
}
const hex = (list) => [...list].map((b) => b.toString(16).toUpperCase().padStart(2, '0')).join(' ');
const decoder = new TextDecoder('utf-8', {fatal: true, ignoreBOM: true});

// A piece for people: its text, spaces and newlines visible, and bytes that are no whole character in hex.
function readable(piece) {
  const chars = [...piece], list = chars.every((c) => BYTE_OF.has(c)) ? Uint8Array.from(chars, (c) => BYTE_OF.get(c)) : new TextEncoder().encode(piece);
  try { return decoder.decode(list).replace(/ /g, '␣').replace(/\n/g, '⏎').replace(/[\p{C}\p{Z}]/gu, (c) => `<${hex(new TextEncoder().encode(c))}>`); }
  catch { return `<${hex(list)}>`; }
}

// The word after `n` of its merges: pieces, ranks between them, which bytes each piece covers, and the nodes of the tree so far.
function wordAt(word, n) {
  let pieces = [...word.pieces], ranks = [...word.ranks], spots = pieces.map((_, i) => ({from: i, to: i + 1, x: i + .5, depth: 0}));
  const joins = [];
  word.steps.forEach(([i, left, right], k) => {
    const a = spots[i], b = spots[i + 1], node = {from: a.from, to: b.to, x: (a.x + b.x) / 2, depth: 1 + Math.max(a.depth, b.depth), a, b, k, piece: word.pieces.slice(a.from, b.to).join('')};
    joins.push(node);
    spots = [...spots.slice(0, i), node, ...spots.slice(i + 2)];
    if (k >= n) return;
    pieces = [...pieces.slice(0, i), pieces[i] + pieces[i + 1], ...pieces.slice(i + 2)];
    ranks = [...ranks.slice(0, Math.max(0, i - 1)), ...(i > 0 ? [left] : []), ...(i < pieces.length - 1 ? [right] : []), ...ranks.slice(i + 2)];
  });
  return {pieces, ranks, joins, chosen: n < word.steps.length ? word.steps[n][0] : null};
}

function tree(word, n, state, width) {
  const bytes = word.pieces.length, cell = clamp(width / Math.max(1, bytes), 20, 46), levels = Math.max(1, ...state.joins.map((node) => node.depth));
  const top = 16, height = 134, base = top + height, x = (node) => node.x * cell, y = (node) => base - node.depth * Math.min(30, height / levels);
  return s('svg', {width: bytes * cell, height: base + 18, class: 'bp-tree', role: 'img', 'aria-label': `tree of the merges of ${word.word}`},
    state.joins.map((node) => s('g', {class: node.k < n ? 'bp-done' : node.k === n ? 'bp-next' : 'bp-later'},
      s('path', {d: `M${x(node.a)} ${y(node.a)} V${y(node)} H${x(node.b)} V${y(node.b)}`}))),
    state.joins.map((node) => node.k <= n && s('text', {class: `bp-node${node.k === n ? ' bp-bold' : ''}`, x: x(node), y: y(node) + 4, 'text-anchor': 'middle'}, readable(node.piece), s('tspan', {class: 'bp-order', dx: 2}, node.k + 1))),
    word.pieces.map((piece, i) => s('text', {x: (i + .5) * cell, y: base + 13, 'text-anchor': 'middle', class: 'bp-byte'}, readable(piece).replace(/[<>]/g, ''))));
}

// Counts of the merged pairs as bars, tokens of the text as a line.
function curve(training, at, go) {
  const n = training.steps.length, width = 520, height = 214, left = 30, right = 30, cell = (width - left - right) / Math.max(1, n), most = training.steps[0]?.pairs[0][2] ?? 1;
  const x = (i) => left + i * cell, y = (v, of) => height - 18 - (v / of) * (height - 40);
  const tokens = [training.num_bytes, ...training.steps.map((step) => step.num_tokens)];
  return s('svg', {viewBox: `0 0 ${width} ${height}`, class: 'bp-curve', role: 'img', 'aria-label': 'counts of the merged pairs'},
    training.steps.map((step, i) => s('g', {class: i < at ? 'bp-done' : i === at ? 'bp-next' : 'bp-later', 'data-i': i, onclick: () => go(i)}, s('rect', {class: 'bp-hit', x: x(i), y: 10, width: cell, height: height - 28}),
      s('rect', {class: 'bp-count', x: x(i) + 1, y: y(step.pairs[0][2], most), width: cell - 2, height: height - 18 - y(step.pairs[0][2], most)}))),
    s('path', {class: 'bp-line', d: tokens.map((v, i) => `${i ? 'L' : 'M'}${x(i)} ${y(v, training.num_bytes)}`).join('')}), s('circle', {class: 'bp-dot', cx: x(at), cy: y(tokens[at], training.num_bytes), r: 4}),
    s('text', {x: 0, y: 12}, `${num(most)} times`), s('text', {x: width, y: 12, 'text-anchor': 'end', class: 'bp-right'}, `${num(training.num_bytes)} tokens`), s('text', {x: left, y: height - 4}, 'merge 1'),
    s('text', {x: width - right, y: height - 4, 'text-anchor': 'end'}, `merge ${n}`));
}

function render({model, el}) {
  const root = mount(el, 'bpe_stepper', 'BPE stepper: the merges of a text'), data = model.get('data'), kinds = data.tokenizers.map((t) => ({...t, texts: [...t.texts]})), live = model.get('live');
  let {tokenizer = 0, text = 0, learning = false} = model.get('choice') ?? {}, at = model.get('at') ?? 0;
  text = clamp(text, 0, kinds[0].texts.length - 1);
  const shown = () => (learning ? data.training : kinds[tokenizer].texts[text]), count = () => shown().says.length;
  const names = () => kinds[0].texts.map((t, i) => [String(i), t.text.replace(/\n/g, '⏎').slice(0, 40) || '(empty)']);
  const save = settle(() => { model.set('at', at); model.set('choice', {tokenizer, text, learning}); model.save_changes(); });
  const ticks = () => {
    if (learning) return [];
    let n = 0;
    return shown().words.filter((w) => w.steps.length).map((w) => ({at: n += w.steps.length, kind: 'finished'}));
  };
  const says = h('p', {class: 'li-big', 'aria-live': 'polite'}), badge = h('span', {class: 'li-badge'});
  const bar = transport({count: count(), at, label: 'step', ticks: ticks(), onStep: (to) => { at = to; draw(); save(); }});
  const mode = select({label: 'show', key: 'l', options: [['', 'a text being cut'], ['1', 'a vocabulary being learned']], value: learning ? '1' : '', onChange: (v) => choose({learning: v === '1'})});
  const pickKind = select({label: 'tokenizer', options: kinds.map((t, i) => [String(i), t.name]), value: String(tokenizer), onChange: (v) => choose({tokenizer: Number(v)})});
  const pickText = select({label: 'text', key: '[ ]', options: names(), value: String(text), onChange: (v) => choose({text: Number(v)})});
  const typed = h('input', {type: 'text', class: 'bp-typed', 'aria-label': 'another text', placeholder: live ? 'another text' : 'needs a kernel', title: live ? 'Another text, then Enter' : 'Another text needs a running kernel', disabled: !live, onkeydown: (e) => { if (e.key === 'Enter') ask(); e.stopPropagation(); }});
  const ask = () => { problem.textContent = ''; model.send({ask: 'text', text: typed.value}); }, problem = h('span', {class: 'li-muted'});
  const cut = button('Cut it', ask, {title: 'Cut this text'});
  cut.disabled = !live;
  const chips = h('div', {class: 'bp-chips'}), title = h('h4', {}), left = h('div', {class: 'bp-left'}), rightTitle = h('h4', {}), right = h('div', {class: 'bp-right-side'}), textTitle = h('h4', {}), all = h('table', {class: 'li-table'});
  const fields = h('span', {class: 'li-row'}, pickText.el, typed, cut, problem);
  root.append(h('div', {class: 'bp-top'}, says, badge), bar.el, h('div', {class: 'li-row bp-controls'}, mode.el, pickKind.el, fields),
    h('section', {class: 'li-panel bp-text'}, textTitle, chips),
    h('div', {class: 'bp-two li-stack'}, h('section', {class: 'li-panel'}, title, left), h('section', {class: 'li-panel'}, rightTitle, right)),
    h('details', {}, h('summary', {}, 'All merges as a table'), all));

  function choose(change) {
    ({tokenizer, text, learning} = {tokenizer, text, learning, ...change});
    mode.set(learning ? '1' : ''); pickKind.set(String(tokenizer)); pickText.set(String(text));
    at = Math.min('learning' in change ? 0 : 3, count() - 1);
    bar.stop(); bar.setCount(count(), ticks()); bar.set(at);
    draw(); save();
  }
  // Which word has the merge that comes next, and how many merges each word has had.
  function places(words) {
    let left = at, current = -1;
    const done = words.map((word, i) => {
      const n = Math.min(left, word.steps.length);
      left -= n;
      if (current < 0 && n < word.steps.length) current = i;
      return n;
    });
    return {done, current: current < 0 ? words.findLastIndex((w) => w.steps.length) : current, over: current < 0};
  }
  function drawText() {
    const {words} = shown(), {done, current, over} = places(words), starts = [];
    words.reduce((n, word) => (starts.push(n), n + word.steps.length), 0);
    textTitle.textContent = `The text: ${num(new TextEncoder().encode(shown().text).length)} bytes in ${words.length} words, in ${num(words.reduce((t, w, i) => t + w.pieces.length - done[i], 0))} pieces now. Below a finished piece: its token id. Click a word to go there`;
    chips.replaceChildren(...words.map((word, i) => {
      const state = wordAt(word, done[i]), ready = done[i] === word.steps.length && (over || i < current || (i !== current && !word.steps.length));
      return h('button', {type: 'button', class: `bp-word${i === current && !over ? ' bp-here' : ''}${ready ? ' bp-ready' : ''}`, 'data-word': i, title: word.special ? 'a special token: nothing merges' : `${word.pieces.length} bytes, ${word.steps.length} merges`,
        onclick: () => { bar.stop(); bar.set(starts[i]); }}, state.pieces.map((piece, j) => h('span', {class: 'bp-piece'}, h('b', {}, readable(piece)), h('small', {}, ready ? String(word.ids[j]) : ''))));
    }));
    const word = words[current];
    if (!word) { title.textContent = 'No word'; left.replaceChildren(h('p', {class: 'li-muted'}, 'Nothing merges here.')); rightTitle.textContent = ''; right.replaceChildren(); return; }
    const n = done[current], state = wordAt(word, n), {pieces, ranks, chosen} = state;
    title.textContent = `“${word.word.replace(/ /g, '␣').replace(/\n/g, '⏎').slice(0, 34)}”: pieces, and the ranks of neighbours (· is no merge)`;
    const row = h('div', {class: 'bp-row'}, pieces.flatMap((piece, i) => [
      h('span', {class: `bp-box${chosen !== null && (i === chosen || i === chosen + 1) ? ' bp-chosen' : ''}`}, readable(piece)),
      i < ranks.length ? h('span', {class: `bp-rank${i === chosen ? ' bp-chosen' : ''}`}, ranks[i] === null ? '·' : num(ranks[i])) : '']));
    left.replaceChildren(row, h('div', {class: 'bp-scroll'}, tree(word, n, state, 540)), h('p', {class: 'li-muted bp-note'}, 'Tree of its merges. Small numbers: in which order. Dotted: still to come.'));
    const pairs = ranks.map((rank, i) => ({rank, i})).filter((p) => p.rank !== null).sort((a, b) => a.rank - b.rank || a.i - b.i);
    rightTitle.textContent = `Pairs that could merge: ${pairs.length} of ${ranks.length}`;
    right.replaceChildren(h('p', {class: 'li-muted bp-note'}, 'Rank: when the merge was learned. The lowest merges first.'), pairs.length ? h('table', {class: 'li-table'}, h('thead', {}, h('tr', {}, ['rank', 'pair', 'token'].map((t) => h('th', {}, t)))), h('tbody', {}, pairs.map((p) =>
      h('tr', {class: p.i === chosen ? 'bp-chosen' : null}, h('td', {class: 'li-num'}, num(p.rank)), h('td', {}, `${readable(pieces[p.i])} + ${readable(pieces[p.i + 1])}`), h('td', {}, readable(pieces[p.i] + pieces[p.i + 1]))))))
      : h('p', {class: 'li-muted'}, `None: ${pieces.length === 1 ? 'one piece is left' : 'these pieces are the tokens'}.`));
  }
  function drawLearning() {
    const step = data.training.steps[at], most = data.training.steps[0]?.pairs[0][2] ?? 1, merged = data.training.steps.slice(0, at).map((t) => t.pairs[0]);
    textTitle.textContent = `Learned so far: ${merged.length} merges, in this order; a merge's place is its rank`;
    chips.replaceChildren(...merged.map(([a, b], i) => h('span', {class: 'bp-word bp-ready'}, h('span', {class: 'bp-piece'}, h('b', {}, readable(a + b)), h('small', {}, String(i))))));
    title.textContent = 'Bars: how often the merged pair stood in the text. Line: tokens that are left';
    left.replaceChildren(curve(data.training, at, (i) => { bar.stop(); bar.set(i); }));
    rightTitle.textContent = 'Most frequent pairs now';
    right.replaceChildren(step ? h('table', {class: 'li-table bp-pairs'}, h('tbody', {}, step.pairs.map(([a, b, n], i) => h('tr', {class: i === 0 ? 'bp-chosen' : null}, h('td', {}, `${readable(a)} + ${readable(b)}`),
      h('td', {class: 'li-num'}, num(n)), h('td', {class: 'bp-cell'}, h('i', {class: 'li-move', style: {width: `${100 * n / most}%`}})))))) : h('p', {class: 'li-muted'}, 'Learning ends here.'));
  }
  function draw() {
    says.textContent = shown().says[at];
    badge.textContent = learning ? 'learned when made' : `${num(kinds[tokenizer].num_tokens)} tokens, ${num(kinds[tokenizer].num_merges)} merges`;
    fields.style.visibility = pickKind.el.style.visibility = learning ? 'hidden' : 'visible';
    (learning ? drawLearning : drawText)();
    all.replaceChildren(h('tbody', {}, shown().says.map((words, i) => h('tr', {class: i === at ? 'bp-at' : null}, h('td', {class: 'li-num'}, String(i)), h('td', {}, words)))));
  }
  bindKeys(root, {...bar.keys, ']': [() => choose({text: (text + 1) % kinds[0].texts.length}), 'next text'], '[': [() => choose({text: (text + kinds[0].texts.length - 1) % kinds[0].texts.length}), 'text before'],
    l: [() => choose({learning: !learning}), 'cutting or learning']});
  const onAt = () => { if (model.get('at') !== at) bar.set(model.get('at')); };
  const onMessage = (message) => {
    if (message.error) problem.textContent = message.error;
    if (!message.texts) return;
    kinds.forEach((kind, i) => kind.texts.push(message.texts[i]));
    pickText.setOptions(names());
    choose({text: kinds[0].texts.length - 1});
  };
  model.on('change:at', onAt);
  model.on('msg:custom', onMessage);
  draw();
  return () => { bar.stop(); model.off('change:at', onAt); model.off('msg:custom', onMessage); };
}

export default {render};
