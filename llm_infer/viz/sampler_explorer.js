// The next token's distribution after every stage of the sampler. Stages and noise are those of sampling/sampler.py, operation by operation.
import {h, mount, bindKeys, slider, select, check, button, num, settle} from './common.js';

const STAGES = [['raw', 'raw'], ['lists', 'lists'], ['bias', 'bias'], ['penalties', 'penalties'], ['temperature', 'temperature'],
  ['min_p', 'min-p'], ['top_k', 'top-k'], ['top_p', 'top-p']];
const OFF = {temperature: 1, min_p: 0, top_k: 0, top_p: 1, repetition_penalty: 1, frequency_penalty: 0, presence_penalty: 0};
const PRESETS = {greedy: {temperature: 0}, neutral: {}, careful: {temperature: 0.3, top_p: 0.9}, balanced: {temperature: 0.8, min_p: 0.02, top_k: 50, top_p: 0.9},
  creative: {temperature: 1.4, min_p: 0.05}, 'no repeats': {temperature: 0.8, top_p: 0.95, repetition_penalty: 1.15, frequency_penalty: 0.6}};
const NUM_ROWS = 40;

// --- the stages. An item is a token, or a bar of `n` tokens of the rest at about one logit x, of which `keep` are left.
const alive = (items) => items.filter((item) => item.keep > 0);
const largest = (items) => items.reduce((m, item) => (item.keep > 0 && item.x > m ? item.x : m), -Infinity);

function rawItems(d) {
  const named = d.ids.map((id, i) => ({i, id, x: d.logits[i], keep: 1, n: 1}));
  return named.concat(d.rest.mean.map((x, j) => ({i: -1, j, x, low: d.rest.number[j] * d.bar, high: (d.rest.number[j] + 1) * d.bar, keep: d.rest.count[j], n: d.rest.count[j]})));
}

function lists(items, d, p) {
  const banned = new Set(p.banned.flatMap((id) => d.bans[id] ?? []));
  return items.map((item) => ({...item, keep: (p.allowed.length && !p.allowed.includes(item.id)) || banned.has(item.id) ? 0 : item.keep}));
}

function bias(items, d, p) {
  return items.map((item) => ({...item, keep: p.min_tokens && d.eos.includes(item.id) ? 0 : item.keep, x: item.x + (p.bias[item.id] ?? 0)}));
}

function penalties(items, d, p) {
  return items.map((item) => {
    if (item.i < 0 || !(d.in_prompt[item.i] || d.counts[item.i])) return item;
    const count = d.counts[item.i], x = item.x > 0 ? item.x / p.repetition_penalty : item.x * p.repetition_penalty;
    return {...item, x: x - p.frequency_penalty * count - (count > 0 ? p.presence_penalty : 0)};
  });
}

const temperature = (items, d, p) => items.map((item) => (item.i < 0 ? {...item, x: item.x / p.temperature, low: item.low / p.temperature, high: item.high / p.temperature}
  : {...item, x: item.x / p.temperature}));

function minP(items, d, p) {
  const cut = largest(items) + Math.log(p.min_p);
  const part = (item) => Math.round(item.keep * Math.min(1, Math.max(0, (item.high - cut) / (item.high - item.low))));
  return items.map((item) => ({...item, keep: item.i < 0 ? part(item) : item.x < cut ? 0 : item.keep}));
}

// Keeps items from the largest down, as long as `wanted(before, item)` says how many of an item, and ties of the last.
function head(items, wanted) {
  const order = alive(items).sort((a, b) => b.x - a.x), kept = new Map();
  let last = Infinity;
  for (const item of order) {
    const n = wanted(item);
    if (n > 0) { kept.set(item, n); last = item.x; } else if (item.i >= 0 && item.x === last) kept.set(item, 1); else break;
  }
  return items.map((item) => ({...item, keep: kept.get(item) ?? 0}));
}

function topK(items, d, p) {
  let left = p.top_k > 0 ? p.top_k : Infinity;
  return head(items, (item) => { const n = Math.min(item.keep, left); left -= n; return n; });
}

function topP(items, d, p) {
  if (p.top_p >= 1) return items;
  const most = largest(items), mass = (item) => Math.exp(item.x - most), total = alive(items).reduce((t, item) => t + item.keep * mass(item), 0);
  let before = 0;
  return head(items, (item) => {
    const need = p.top_p * total - before, n = before === 0 ? Math.max(1, Math.min(item.keep, Math.ceil(need / mass(item)))) : Math.max(0, Math.min(item.keep, Math.ceil(need / mass(item))));
    before += n * mass(item);
    return n;
  });
}

const probs = (items) => {
  const most = largest(items), total = alive(items).reduce((t, item) => t + item.keep * Math.exp(item.x - most), 0);
  return items.map((item) => (item.keep > 0 ? item.keep * Math.exp(item.x - most) / total : 0));
};

// Every stage: its items, their probabilities, how many tokens it removes and with what mass. A greedy row ends after the penalties.
function runStages(d, p) {
  const steps = {raw: rawItems, lists, bias, penalties, temperature, min_p: p.min_p > 0 ? minP : (x) => x, top_k: topK, top_p: topP}, out = {};
  let items = null, before = null;
  for (const [name] of STAGES) {
    if (name === 'temperature' && p.temperature < 1e-5) break;
    const next = items === null ? rawItems(d) : steps[name](items, d, p), now = probs(next);
    const kept = next.reduce((t, item) => t + item.keep, 0), removed = items === null ? 0 : items.reduce((t, item, i) => t + item.keep - next[i].keep, 0);
    const mass = items === null ? 0 : items.reduce((t, item, i) => (item.keep > next[i].keep ? t + before[i] * (1 - next[i].keep / item.keep) : t), 0);
    out[name] = {items: next, probs: now, kept, removed, mass};
    items = next;
    before = now;
  }
  const last = out.penalties;
  out.greedy = last.items.reduce((best, item, i) => (item.keep > 0 && (best < 0 || item.x > last.items[best].x) ? i : best), -1);
  return out;
}

// --- the draw: SplitMix64 of seed, step and token id, as exponential_noise in kernels/sampling.py
const MASK = (1n << 64n) - 1n, GOLDEN = 0x9e3779b97f4a7c15n;
function mix64(z) {
  for (const [shift, factor] of [[30n, 0xbf58476d1ce4e5b9n], [27n, 0x94d049bb133111ebn], [31n, 1n]]) z = (((z >> shift) ^ z) * factor) & MASK;
  return z;
}
const noiseKey = (seed, step) => mix64((mix64((BigInt(seed) + GOLDEN) & MASK) + BigInt(step)) & MASK);
function noise(key, id) {
  const bits = mix64((key + BigInt(id + 1) * GOLDEN) & MASK) & (MASK >> 1n), uniform = Math.fround(Number(bits)) * 2 ** -63;
  return -Math.log1p(-Math.min(Math.max(uniform, 2 ** -64), 1 - 2 ** -24));
}

// The race of one draw, the winner first. The tokens without a name run as one, with the mass of all of them and an id of its own.
function race(stages, seed, step) {
  const last = stages.top_p;
  if (!last) return [{at: stages.greedy, p: 1, e: 1, score: 1}];
  const key = noiseKey(seed, step), runs = [];
  const run = (at, p, id) => { if (p > 0) { const e = noise(key, id); runs.push({at, p, e, score: p / e}); } };
  last.items.forEach((item, at) => { if (item.i >= 0) run(at, last.probs[at], item.id); });
  const first = last.items.findIndex((item) => item.i < 0);
  run(first, last.probs.slice(first).reduce((a, b) => a + b, 0), 1e7);
  return runs.sort((a, b) => b.score - a.score);
}

// --- what is seen
const pct = (p) => (p === 0 ? '0' : p < 0.00005 ? '<.01' : p < 0.0995 ? (100 * p).toFixed(2) : (100 * p).toFixed(1));
const show = (text) => (text === '' ? '(none)' : JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll(' ', '␣'));
const quote = (text) => `“${text.replaceAll('\n', '⏎')}”`;

function pythonLine(p, d) {
  const text = (id) => JSON.stringify(d.texts[d.ids.indexOf(id)].trim()), parts = Object.entries(OFF).filter(([k, off]) => p[k] !== off).map(([k]) => `${k}=${p[k]}`);
  const biased = Object.entries(p.bias).filter(([, b]) => b);
  if (p.min_tokens) parts.push(`min_tokens=${d.num_output + 1}`);
  if (biased.length) parts.push(`logit_bias={${biased.map(([id, b]) => `${id}: ${b}`).join(', ')}}`);
  if (p.banned.length) parts.push(`bad_words=[${p.banned.map(text).join(', ')}]`);
  if (p.allowed.length) parts.push(`allowed_token_ids=[${p.allowed.join(', ')}]`);
  return `SamplingParams(${[...parts, `seed=${p.seed}`].join(', ')})`;
}

function sentence(d, p, stages) {
  const tail = (d.prompt + d.output).slice(-42), after = `After ${quote((d.prompt + d.output).length > 42 ? `…${tail}` : tail)}`;
  const g = stages.greedy, greedy = g < 0 ? 'nothing' : stages.penalties.items[g].i < 0 ? 'a token of the rest' : quote(d.texts[g]);
  if (!stages.top_p) return `${after}, temperature 0 takes the likeliest token, ${greedy}: nothing is cut, nothing is drawn.`;
  const last = stages.top_p, about = last.items.some((item) => item.i < 0 && item.keep > 0 && item.keep < item.n) ? 'about ' : '';
  const most = ['lists', 'bias', 'min_p', 'top_k', 'top_p'].filter((n) => stages[n].removed).sort((a, b) => stages[b].mass - stages[a].mass)[0];
  const cut = most ? ` ${STAGES.find(([n]) => n === most)[1]} removes the most, ${pct(stages[most].mass)}% of the mass.` : ' Nothing is removed.';
  return `${after}, ${about}${num(last.kept)} of ${num(d.vocab)} tokens can be drawn; greedy would take ${greedy}, which has ${g < 0 ? 0 : pct(last.probs[g])}% now.${cut}`;
}

function render({model, el}) {
  const root = mount(el, 'sampler_explorer', 'Sampler explorer');
  let data = model.get('data'), at = model.get('at'), p = {...OFF, seed: 0, bias: {}, banned: [], allowed: [], min_tokens: false, ...model.get('state')};
  let pinned = 0, counts = new Map(), drawn = 0, lastRace = null, stages = null, saving = false;
  const d = () => data.prompts[at] ?? data.prompts[0], pinnedId = () => d().ids[pinned];
  const save = settle(() => { saving = true; model.set('state', {...p}); model.set('at', at); saving = false; model.save_changes(); });
  const forget = () => { counts = new Map(); drawn = 0; lastRace = null; };
  const change = (changes) => { p = {...p, ...changes}; forget(); setControls(); draw(); save(); };

  const control = (name, label, min, max, step, format) => slider({label, min, max, step, value: p[name], format, onInput: (v) => change({[name]: v})});
  const two = (v) => v.toFixed(2), sliders = {
    temperature: control('temperature', 'divide', 0, 2, 0.05, two), min_p: control('min_p', 'of max', 0, 0.5, 0.01, two),
    top_k: control('top_k', 'keep k', 0, 200, 1, (v) => (v ? num(v) : 'all')), top_p: control('top_p', 'mass', 0.05, 1, 0.01, two),
    repetition_penalty: control('repetition_penalty', 'repeated', 0.5, 2, 0.05, two), frequency_penalty: control('frequency_penalty', 'frequency', -2, 2, 0.1, two),
    presence_penalty: control('presence_penalty', 'presence', -2, 2, 0.1, two)};
  const biasSlider = slider({label: 'add to row', min: -10, max: 10, step: 0.5, value: 0, format: (v) => (v > 0 ? `+${v}` : `${v}`), onInput: (v) => change({bias: {...p.bias, [pinnedId()]: v}})});
  const minTokens = check({label: 'no end', value: p.min_tokens, onChange: (v) => change({min_tokens: v})});
  const toggle = (list, id) => (list.includes(id) ? list.filter((x) => x !== id) : [...list, id]);
  const deny = button('deny', () => { if (d().bans[pinnedId()]) change({banned: toggle(p.banned, pinnedId())}); }, {title: 'Make the chosen token a bad word, or not', key: 'x'});
  const allow = button('allow', () => change({allowed: toggle(p.allowed, pinnedId())}), {title: 'Put the chosen token on the allow-list, or take it off', key: 'o'});
  const seed = h('input', {type: 'number', min: 0, step: 1, value: p.seed, 'aria-label': 'seed', onchange: () => change({seed: Math.max(0, Math.floor(Number(seed.value) || 0))})});
  const draws = [1, 100, 1000].map((n) => button(n === 1000 ? '1k' : String(n), () => drawMany(n), {title: `Draw ${n}`, key: n === 1 ? 'r' : ''}));
  const cell = {raw: [h('span', {class: 'li-muted'}, "the model's")], lists: [deny, allow], bias: [biasSlider.el, minTokens.el],
    penalties: ['repetition_penalty', 'frequency_penalty', 'presence_penalty'].map((n) => sliders[n].el), temperature: [sliders.temperature.el],
    min_p: [sliders.min_p.el], top_k: [sliders.top_k.el], top_p: [sliders.top_p.el]};
  const heads = Object.fromEntries(STAGES.map(([name, title]) => [name, h('div', {class: 'sx-head', 'data-head': name}, h('h4', {}, title), cell[name])]));
  const drawHead = h('div', {class: 'sx-head', 'data-head': 'draw'}, h('h4', {}, 'draw'), h('div', {class: 'sx-draws'}, draws), h('label', {class: 'sx-seed'}, 'seed ', seed));
  const removes = Object.fromEntries([...STAGES, ['draw']].map(([name]) => [name, h('div', {class: 'sx-removes', 'data-removes': name})]));
  const rows = Array.from({length: NUM_ROWS}, (_, i) => {
    const name = h('button', {type: 'button', class: 'sx-name', 'aria-keyshortcuts': 'ArrowUp ArrowDown', onclick: () => pin(i)});
    const cells = [...STAGES, ['draw']].map(([stage]) => h('div', {class: 'sx-cell', 'data-stage': stage, onclick: () => pin(i)}, h('span', {class: 'sx-bar'}), h('span', {class: 'sx-p'})));
    return {el: h('div', {class: 'sx-row', 'data-row': i}, name, cells), name, cells};
  });
  const others = [h('div', {class: 'sx-other'}), ...[...STAGES, ['draw']].map(([name]) => h('div', {class: 'sx-cell', 'data-other': name}, h('span', {class: 'sx-bar'}), h('span', {class: 'sx-p'})))];
  const full = h('div', {class: 'sx-removes', title: 'All columns have one scale, though their widths differ: a bar across its column is this much'});
  const say = h('p', {class: 'li-big sx-say', 'aria-live': 'polite'}), strip = h('div', {class: 'li-panel sx-strip'}), code = h('code', {class: 'li-mono sx-code'}), more = h('div', {class: 'sx-more'});
  const promptName = (x, i) => [String(i), `…${(x.prompt + x.output).replaceAll('\n', '⏎').slice(-28)}`.replace(/^…(?=.{0,27}$)/, '')];
  const choose = select({label: 'after', options: data.prompts.map(promptName), value: String(at), onChange: (v) => { at = Number(v); moved(); save(); }});
  const typed = h('input', {type: 'text', class: 'sx-typed', placeholder: 'or type a prompt ⏎', 'aria-label': 'another prompt', onkeydown: (e) => { if (e.key === 'Enter' && typed.value) ask(typed.value, ''); }});
  const goOn = button('append it', () => { if (lastRace) ask(d().prompt, d().output + d().texts[lastRace[0].at]); }, {title: 'Append the drawn token and ask the model again'});
  const ask = (prompt, output) => { say.textContent = 'The model runs…'; model.send({ask: 'prompt', prompt, output}); };
  const presets = Object.keys(PRESETS).map((name) => button(name, () => change({...OFF, bias: {}, banned: [], allowed: [], min_tokens: false, ...PRESETS[name]})));

  const plain = () => !p.min_tokens && !p.banned.length && !p.allowed.length && Object.values(p.bias).every((b) => !b);
  const isPreset = (preset) => plain() && Object.entries({...OFF, ...preset}).every(([k, v]) => Math.abs(p[k] - v) < 1e-9);
  const pin = (i) => { pinned = i; setControls(); draw(); };
  const moved = () => { pinned = 0; p = {...p, bias: {}, banned: [], allowed: []}; forget(); setControls(); draw(); };
  function drawMany(n) {
    for (let i = 0; i < n; i++) { lastRace = race(stages, p.seed, drawn++); counts.set(lastRace[0].at, (counts.get(lastRace[0].at) ?? 0) + 1); }
    draw();
  }
  function setControls() {
    for (const name of Object.keys(OFF)) sliders[name].set(p[name]);
    biasSlider.set(p.bias[pinnedId()] ?? 0);
    minTokens.set(p.min_tokens);
    seed.value = p.seed;
    presets.forEach((node, i) => node.setAttribute('aria-pressed', String(isPreset(Object.values(PRESETS)[i]))));
    choose.set(String(at));
    deny.disabled = !d().bans[pinnedId()];
    deny.setAttribute('aria-pressed', String(p.banned.includes(pinnedId())));
    allow.setAttribute('aria-pressed', String(p.allowed.includes(pinnedId())));
  }
  function setCell(node, now, before, share, gone) {
    const [bar, text] = node.children, struck = before > 0 && now === 0;
    node.className = `sx-cell${struck ? ' sx-cut' : now === 0 ? ' sx-gone' : ''}`;
    bar.style.width = `${Math.min(100, 100 * (struck ? before : now) / share)}%`;
    text.textContent = struck ? `✕ ${pct(before)}` : now === 0 ? (gone ? '·' : '0') : pct(now);
    node.dataset.p = now;
  }
  function draw() {
    const x = d(), rowsShown = Math.min(NUM_ROWS, x.ids.length);
    stages = runStages(x, p);
    say.textContent = sentence(x, p, stages);
    const scale = Math.max(...STAGES.map(([name]) => Math.max(...(stages[name]?.probs.slice(0, rowsShown) ?? [0]))));
    full.replaceChildren('full column:', h('br', {}), `${pct(scale)}% or more`);
    for (let i = 0; i < NUM_ROWS; i++) {
      const {el: row, name, cells} = rows[i];
      row.hidden = i >= rowsShown;
      if (row.hidden) continue;
      name.textContent = `${i === stages.greedy ? '★ ' : ''}${show(x.texts[i])}`;
      name.title = `token ${x.ids[i]}, raw logit ${x.logits[i]}`;
      name.setAttribute('aria-pressed', String(i === pinned));
      row.classList.toggle('li-on', i === pinned);
      row.classList.toggle('sx-greedy', i === stages.greedy);
      row.classList.toggle('sx-won', lastRace !== null && lastRace[0].at === i);
      STAGES.forEach(([stage], k) => {
        if (!stages[stage]) { setCell(cells[k], 0, 0, scale, true); return; }
        setCell(cells[k], stages[stage].probs[i], k === 0 ? 0 : stages[STAGES[k - 1][0]].probs[i], scale, true);
      });
      drawCell(cells[STAGES.length], counts.get(i) ?? 0, exact(i), scale);
    }
    const rest = (list) => list.slice(rowsShown).reduce((a, b) => a + b, 0);
    others[0].textContent = `the other ${num(x.vocab - rowsShown)}`;
    STAGES.forEach(([stage], k) => {
      const s1 = stages[stage], s0 = k === 0 ? null : stages[STAGES[k - 1][0]];
      setCell(others[k + 1], s1 ? rest(s1.probs) : 0, s0 && s1 ? rest(s0.probs) : 0, Math.max(scale, 1e-9), true);
    });
    drawCell(others[STAGES.length + 1], [...counts].filter(([i]) => i >= rowsShown).reduce((t, [, n]) => t + n, 0), stages.top_p ? rest(stages.top_p.probs) : 0, scale);
    for (const [name] of STAGES) {
      const s1 = stages[name];
      heads[name].classList.toggle('sx-skipped', !s1);
      removes[name].replaceChildren(...(!s1 ? ['skipped'] : s1.removed ? [h('b', {}, `−${pct(s1.mass)}%`), h('br', {}), `keeps ${num(s1.kept)}`] : name === 'raw' ? ['all', h('br', {}), num(s1.kept)] : ['removes', h('br', {}), 'nothing']));
    }
    removes.draw.replaceChildren(...(drawn ? [`${num(drawn)} drawn`, h('br', {}), '| exact'] : ['none drawn', h('br', {}), 'exact %']));
    drawStrip(x);
    code.textContent = pythonLine(p, x);
    if (details.open) table(x);
  }
  const exact = (i) => (stages.top_p ? stages.top_p.probs[i] : i === stages.greedy ? 1 : 0);
  function drawCell(node, count, expected, scale) {
    const [bar, text] = node.children;
    bar.style.width = `${Math.min(100, 100 * (drawn ? count / drawn : 0) / scale)}%`;
    node.style.setProperty('--sx-exact', drawn && expected > 0 ? `${Math.min(98, 100 * expected / scale)}%` : '-9px');
    text.textContent = drawn ? num(count) : expected > 0 ? pct(expected) : '·';
    node.dataset.count = count;
  }
  function drawStrip(x) {
    const i = pinned, s4 = stages.penalties.items[i], name = (run) => (run.at < x.ids.length ? quote(x.texts[run.at]) : 'one of the rest');
    const line = lastRace ? ['Draw ', h('b', {}, String(drawn)), `: p ÷ noise is ${lastRace.slice(0, 3).map((r) => `${name(r)} ${num(Number(r.p.toPrecision(3)))} ÷ ${num(Number(r.e.toPrecision(3)))} = ${num(Number(r.score.toPrecision(3)))}`).join(' · ')}: `,
      h('b', {}, `${name(lastRace[0])} wins.`)] : ['The largest p ÷ noise wins, with noise from Exp(1): press ', h('b', {}, '1'), ' under “draw”, then 1k: counts come to stand at the exact probabilities.'];
    strip.replaceChildren(h('p', {}, h('b', {}, quote(x.texts[i])), ` id ${x.ids[i]}: logit ${num(x.logits[i])}${s4.x !== x.logits[i] ? ` → ${num(s4.x)} after bias and penalties` : ''}; in the prompt: ${x.in_prompt[i] ? 'yes' : 'no'}, in the output: ${x.counts[i]}×.`),
      h('p', {class: 'sx-race'}, line));
  }
  const table = (x) => more.replaceChildren(h('table', {class: 'li-table'}, h('tbody', {}, h('tr', {}, ['stage', 'tokens kept', 'removed', 'mass removed', 'likeliest'].map((t) => h('th', {}, t))),
    STAGES.filter(([name]) => stages[name]).map(([name, title]) => { const s1 = stages[name], best = s1.probs.indexOf(Math.max(...s1.probs.slice(0, x.ids.length)));
      return h('tr', {'data-stage-row': name}, h('td', {}, title), [num(s1.kept), num(s1.removed), `${pct(s1.mass)}%`].map((t) => h('td', {class: 'li-num'}, t)), h('td', {}, `${quote(x.texts[best] ?? '')} ${pct(s1.probs[best])}%`)); }))));
  const details = h('details', {ontoggle: () => table(d())}, h('summary', {}, 'Stages as a table'), h('p', {class: 'li-muted'},
    'The page holds the likeliest 256 tokens and those of the prompt by name, and all others as a histogram of their logits, 1/16 wide. Where a cut falls among the named ones all counts are exact; where it falls among the others, a part of one bar is taken, and counts are said with “about”.'), more);

  const key = (fn, what) => [fn, what];
  bindKeys(root, {ArrowDown: key(() => pin(Math.min(pinned + 1, NUM_ROWS - 1)), 'next token'), ArrowUp: key(() => pin(Math.max(0, pinned - 1)), 'token before'),
    Escape: key(() => { pinned = 0; forget(); setControls(); draw(); }, 'forget the draws'), r: key(() => drawMany(1), 'draw once'), x: key(() => deny.click(), 'deny'), o: key(() => allow.click(), 'allow')});
  root.append(say, h('div', {class: 'li-row sx-top'}, choose.el, model.get('live') ? [typed, goOn] : null, h('span', {class: 'sx-presets'}, presets)),
    h('div', {class: 'sx-scroll'}, h('div', {class: 'sx-grid'},
      h('div', {class: 'sx-row sx-heads'}, h('div', {class: 'sx-head'}, h('h4', {}, 'token, %')), STAGES.map(([name]) => heads[name]), drawHead),
      h('div', {class: 'sx-row sx-sub'}, full, Object.values(removes)),
      h('div', {class: 'sx-body', 'aria-keyshortcuts': 'ArrowUp ArrowDown'}, rows.map((row) => row.el)), h('div', {class: 'sx-row sx-others'}, others))),
    strip, code, details);
  const newState = () => { if (saving) return; p = {...p, ...model.get('state')}; forget(); setControls(); draw(); };
  const newData = () => { data = model.get('data'); choose.setOptions(data.prompts.map(promptName)); newAt(); };
  const newAt = () => { if (!saving && model.get('at') < data.prompts.length) { const changed = at !== model.get('at'); at = model.get('at'); if (changed) { typed.value = ''; moved(); } else { setControls(); draw(); } } };
  const message = (content) => { if (content.error) say.textContent = `The engine refuses this: ${content.error}`; };
  model.on('change:state', newState); model.on('change:data', newData); model.on('change:at', newAt); model.on('msg:custom', message);
  setControls();
  draw();
  return () => { model.off('change:state', newState); model.off('change:data', newData); model.off('change:at', newAt); model.off('msg:custom', message); };
}

export default {render};
