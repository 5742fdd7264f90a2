'use strict';
// Flame graphs: search, zoom and keys. Without this script the pictures, their titles and every table are there all the same.
for (const figure of document.querySelectorAll('figure.flame')) {
  const tree = figure.querySelector('svg.tree');
  const calls = [...tree.querySelectorAll('g')].map((g) => ({
    g, x: +g.dataset.x, w: +g.dataset.w, level: +g.getAttribute('aria-level'),
    title: g.querySelector('title').textContent,
    boxes: [g.querySelector('rect'), g.querySelector('svg')],
    parent: null, children: [],
  }));
  const path = [];
  for (const call of calls) {
    path.length = call.level - 1;
    call.parent = path[call.level - 2] || null;
    if (call.parent) call.parent.children.push(call);
    path[call.level - 1] = call;
  }
  if (!calls.length) continue;
  const told = figure.querySelector('output');
  const [search, reset] = [figure.querySelector('input'), figure.querySelector('button')];
  figure.querySelector('.tools').hidden = false;
  told.hidden = false;
  const root = calls[0];
  let zoomed = root;
  const say = (call) => { told.textContent = call.title; };
  const isAbove = (above, call) => {
    for (let at = call.parent; at; at = at.parent) if (at === above) return true;
    return false;
  };
  const zoom = (to) => {
    zoomed = to;
    for (const call of calls) {
      const above = isAbove(call, to);
      const inside = call === to || isAbove(to, call);
      call.g.classList.toggle('out', !above && !inside);
      const x = above ? 0 : (call.x - to.x) / to.w * 100;
      const w = above ? 100 : call.w / to.w * 100;
      for (const box of call.boxes) {
        box.setAttribute('x', x + '%');
        box.setAttribute('width', w + '%');
      }
    }
    reset.disabled = to === root;
  };
  const go = (call) => {
    if (!call || call.g.classList.contains('out')) return;
    for (const other of calls) other.g.setAttribute('tabindex', other === call ? '0' : '-1');
    call.g.focus();
    say(call);
  };
  const beside = (call, by) => {
    const all = call.parent ? call.parent.children : [call];
    return all[all.indexOf(call) + by];
  };
  for (const call of calls) {
    call.g.addEventListener('click', () => { zoom(call); go(call); });
    call.g.addEventListener('mouseenter', () => say(call));
    call.g.addEventListener('focus', () => say(call));
  }
  tree.addEventListener('keydown', (event) => {
    const call = calls.find((one) => one.g === document.activeElement);
    if (!call || event.ctrlKey || event.altKey || event.metaKey) return;
    const keys = {
      ArrowDown: () => go(call.children[0]),
      ArrowUp: () => go(call.parent),
      ArrowRight: () => go(beside(call, 1)),
      ArrowLeft: () => go(beside(call, -1)),
      Home: () => go(root),
      Enter: () => zoom(call),
      ' ': () => zoom(call),
      Escape: () => zoom(root),
    };
    const act = keys[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  reset.addEventListener('click', () => { zoom(root); go(root); });
  search.addEventListener('input', () => {
    const wanted = search.value.trim().toLowerCase();
    let count = 0;
    let width = 0;
    for (const call of calls) {
      call.hit = wanted !== '' && call.title.split('\n')[0].toLowerCase().includes(wanted);
      call.below = Boolean(call.parent && (call.parent.hit || call.parent.below));
      call.g.classList.toggle('hit', call.hit);
      call.g.classList.toggle('dim', wanted !== '' && !call.hit);
      if (call.hit) count += 1;
      if (call.hit && !call.below) width += call.w;
    }
    told.textContent = wanted === '' ? '' : count + (count === 1 ? ' call' : ' calls') + ' with this text, ' +
      (100 * width / root.w).toFixed(1) + ' % of what is drawn';
  });
}
