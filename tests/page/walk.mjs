// A new user's way with the mouse from the list of jobs to the leaking line, and through every other view of the demo.
//
// Guarantees: everything runs for real (`stage.mjs`). Fails if the line takes more than four clicks, axe has a finding in a
// view, something is requested from elsewhere, the browser complains, or the page loads more than 300 KB, compressed.
//
//     npm ci && node walk.mjs PATH_OF_MEMCTL

import assert from 'node:assert/strict';
import { gzipSync } from 'node:zlib';
import { browser, demo, ended, onEveryScreen, visit } from './stage.mjs';

const [, , memctl = 'memctl'] = process.argv;
const CLICKS_MAX = 4;
const LOADED_MAX = 300_000;

const served = await demo(memctl);
const { address, http: origin } = served;
const chromium = await browser();

try {
  const { page, complaints } = await visit(chromium, origin);
  const inEveryLight = (name) => onEveryScreen(page, name);

  let clicks = 0;
  const click = async (what) => {
    clicks += 1;
    await what.click();
  };
  await page.goto(address);
  await page.getByRole('cell', { name: 'finished' }).waitFor();
  assert.equal(page.url(), `${origin}/`, 'the key is gone from the address');
  await inEveryLight('jobs');

  await click(page.getByRole('link', { name: 'demo', exact: true }));
  await page.getByRole('link', { name: 'Show me what grew' }).waitFor();
  await page.locator('svg.course path.floor').waitFor({ state: 'attached' });
  await inEveryLight('job');
  const deep = page.url();

  await click(page.getByRole('link', { name: 'Show me what grew' }).first());
  await page.getByRole('tree').waitFor();
  await page.locator('svg.bar rect').first().waitFor();
  await page.getByRole('table', { name: 'Sites, what changed most first' }).waitFor();
  await inEveryLight('difference');
  const line = page.getByRole('treeitem', { name: /remember_features\s+\w+\.py:\d+: / }).last();
  await click(line);
  assert.match(await line.getAttribute('aria-label'), /more, 0 B less/);
  assert.ok(clicks <= CLICKS_MAX, `${clicks} clicks`);
  console.log(`${clicks} clicks to: ${await line.getAttribute('aria-label')}`);

  // The same with the keyboard alone: Enter zooms, Escape goes back, arrows move.
  await page.keyboard.press('Escape');
  await page.keyboard.press('Home');
  await page.keyboard.press('ArrowDown');
  const isAt = async (level) => page.locator(`[role=treeitem][aria-level="${level}"]:focus`).waitFor();
  await isAt(2);
  await page.keyboard.press('ArrowUp');
  await isAt(1);

  // Addresses that are sent to a colleague.
  await page.waitForURL((url) => !url.search.includes('focus='));
  const there = page.url();

  // The same stacks in other arrangements. Each move is in the address, and Back undoes one after the other.
  const inAddress = (name, value) => page.waitForURL((url) => url.searchParams.get(name) === value);
  const boxes = () => page.getByRole('treeitem').count();
  const stays = async () => {
    const outside = await page.evaluate(`[...document.querySelectorAll('.tree .names text')].filter((text) => {
      const box = text.getBBox();
      return ![...document.querySelectorAll('.tree g > rect')].some((rect) => { const own = rect.getBBox();
        return Math.abs(own.y + 14 - text.y.baseVal[0].value) < 1 && own.x <= box.x && box.x + box.width <= own.x + own.width + 0.5; });
    }).map((text) => text.textContent)`);
    assert.deepEqual(outside, [], 'labels stay in their boxes');
  };
  await stays();
  await page.goto(there.replace(/moment\?.*/, 'moment?rank=0&at=peak'));
  await page.getByRole('tree').waitFor();
  await stays();
  const folded = await boxes();
  await page.getByRole('treeitem', { name: /^…\d+ frames? of / }).first().click();
  await page.waitForURL((url) => url.searchParams.has('open'));
  assert.ok((await boxes()) > folded, 'a click unfolds library calls');
  await stays();
  await page.goBack();
  await inAddress('open', null);
  assert.equal(await boxes(), folded, 'and Back folds them again');
  await page.getByRole('button', { name: 'Unfold libraries' }).click();
  await inAddress('open', 'all');
  assert.equal(await page.getByRole('treeitem', { name: /^…\d+ frames? of / }).count(), 0);
  await page.getByRole('button', { name: 'Callees first' }).click();
  await inAddress('mode', 'callees');
  await inEveryLight('callees first');
  await page.getByRole('treeitem', { name: /^remember_features/ }).first().focus();
  await page.keyboard.press('s');
  await page.getByRole('treeitem', { name: /^remember_features\s+\w+\.py: / }).waitFor();
  await inAddress('mode', 'sandwich');
  await stays();
  await inEveryLight('callers and callees');
  const sandwich = page.url();
  await page.goto(sandwich);
  await page.getByRole('treeitem', { name: /^remember_features\s+\w+\.py: / }).waitFor();
  await page.goBack();
  await inAddress('mode', 'callees');
  await page.goBack();
  await inAddress('mode', null);
  await page.goBack();
  await inAddress('open', null);

  // The table of sites and the graph are one: what is selected in one is marked in the other.
  await page.getByRole('button', { name: /^remember_features/ }).click();
  await page.waitForURL((url) => url.searchParams.has('site'));
  await page.locator('.tree g.picked').first().waitFor({ state: 'attached' });
  await page.getByRole('button', { name: /^remember_features/, pressed: true }).click();
  await inAddress('site', null);
  await page.getByRole('treeitem', { name: /^remember_features/ }).first().hover();
  await page.locator('.sites tr.lit').waitFor();
  await page.getByRole('button', { name: 'Live', exact: true }).click();
  await page.getByRole('columnheader', { name: 'Live', exact: true }).and(page.locator('[aria-sort=descending]')).waitFor();
  await inAddress('sort', '-live');
  await page.keyboard.press('/');
  await page.keyboard.type('remember');
  await inAddress('search', 'remember');
  await page.getByText(/^\d+ calls? with this text/).waitFor();
  await page.goBack();
  await inAddress('search', null);
  assert.equal(new URL(page.url()).searchParams.get('sort'), '-live', 'Back undoes the search alone');
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await page.getByRole('treeitem', { name: /^remember_features/ }).first().focus();
  await page.keyboard.press('c');
  await page.getByText(/^Copied \d+ frames?\.$/).waitFor();
  assert.match(await page.evaluate('navigator.clipboard.readText()'), /most recent call last\):\n( {2}File ".*", line \d+, in \S.*\n)+/);
  await page.goto(there);
  await page.getByRole('tree').waitFor();
  await page.goto(deep);
  await page.getByRole('heading', { name: 'Verdict' }).waitFor();
  await page.goto(there);
  await page.getByRole('tree').waitFor();

  // The timeline by keys: a cursor, a zoom, a moment; the address keeps the visible range.
  await page.goto(deep);
  const plot = page.getByRole('application', { name: /Memory of/ });
  await plot.focus();
  for (const key of ['p', 'a', '+', '+', 'ArrowRight', 'Alt+ArrowRight', 'b']) await page.keyboard.press(key);
  await page.waitForURL((url) => url.search.includes('since='));
  // More moves within seconds than a browser accepts changes of the address: it would warn.
  for (let turn = 0; turn < 240; turn += 1) await page.keyboard.press(turn % 2 === 0 ? '.' : ',');
  await page.reload();
  await plot.waitFor();
  assert.ok(page.url().includes('since='));
  await plot.focus();
  await page.keyboard.press('p');
  await page.keyboard.press('Enter');
  await page.getByRole('tree').waitFor();
  assert.match(page.url(), /\/moment\?rank=0&at=2/);
  await page.goto(page.url().replace(/at=[^&]*/, 'at=peak'));
  await page.getByRole('heading', { name: 'The peak by class, module and site' }).waitFor();
  await page.getByRole('table', { name: /by module and site, most first/ }).first().waitFor();
  await inEveryLight('moment');

  // A zoom belongs to its own history entry: a link to the same rank shows the whole timeline, each step back its former zoom.
  await page.goto(deep);
  const sinceOf = (url) => new URL(url).searchParams.get('since');
  // (Classes are shown automatically in a closer view, and only there.)
  const isCloser = () => page.getByLabel('Classes').isChecked();
  // Long enough for a late write of the former view's address to overwrite this one.
  const rests = () => page.waitForTimeout(400);
  const settlesAt = async (since) => {
    await page.waitForURL((url) => sinceOf(url) === since);
    await rests();
    assert.deepEqual([sinceOf(page.url()), await isCloser()], [since, since !== null]);
  };
  await plot.focus();
  await page.keyboard.press('+');
  await page.waitForURL((url) => sinceOf(url) !== null);
  const closer = sinceOf(page.url());
  await settlesAt(closer);
  await page.getByRole('table', { name: 'Ranks, those that are odd first' }).locator('a[aria-current="page"]').first().click();
  await settlesAt(null);
  await plot.focus();
  for (const key of ['+', '+', '.']) await page.keyboard.press(key);
  await page.waitForURL((url) => ![null, closer].includes(sinceOf(url)));
  await rests();
  const elsewhere = sinceOf(page.url());
  await page.goBack();
  await settlesAt(closer);
  await page.goForward();
  await settlesAt(elsewhere);

  // Other ranks over the timeline, and the pins that were set on it, which the moment knows by name.
  await page.goto(deep);
  await page.getByLabel('With ranks').fill('1, 2');
  await page.locator('path.over1').waitFor({ state: 'attached' });
  await page.waitForURL((url) => url.search.includes('over='));
  await page.getByRole('application', { name: /Memory of/ }).focus();
  for (const key of ['p', 'a', 'ArrowRight', 'b']) await page.keyboard.press(key);
  await page.getByRole('link', { name: 'What changed from A to B' }).click();
  await page.getByRole('heading', { name: /from pin A to pin B/ }).waitFor();
  await page.getByRole('tree').or(page.getByText('No stack holds more or less')).first().waitFor();

  // The heat map by keys: the outlier is on top.
  await page.goto(deep);
  const heat = page.getByRole('application', { name: /Ranks by epochs/ });
  await heat.focus();
  await page.keyboard.press('ArrowDown');
  assert.match(await page.locator('#heat-said').innerText(), /^rank 0, end of epoch 5: .* against the median\. above the others from the end of epoch \d on/);
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  await page.waitForURL(/rank=[1-3]/);

  // Blocks: by mouse and by keys, forwards and back, and a request that does not fit.
  await page.goto(deep);
  await page.getByRole('link', { name: 'Blocks at the peak' }).click();
  const picture = page.getByRole('application', { name: /blocks as rectangles/ });
  await picture.waitFor();
  await page.locator('canvas.blocks').hover({ position: { x: 40, y: 20 } });
  await page.locator('#block-said ol li').first().waitFor();
  await page.mouse.move(0, 0);
  await picture.focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowRight');
  const block = await page.locator('#block-said').innerText();
  assert.match(block, /requested\), .*\n[^]*allocated in epoch \d+/);
  const eventOf = () => page.getByRole('slider', { name: 'Event' }).inputValue();
  await page.keyboard.press('>');
  await page.waitForURL((url) => url.search.includes('event='));
  const before = Number(await eventOf());
  await page.keyboard.press(',');
  await page.waitForURL((url) => url.search.includes(`event=${before - 1}`));
  await page.getByRole('slider', { name: 'Event' }).focus();
  for (let turn = 0; turn < 240; turn += 1) await page.keyboard.press(turn % 2 === 0 ? 'ArrowLeft' : 'ArrowRight');
  await page.keyboard.press('Home');
  await page.keyboard.press('ArrowRight');
  await page.waitForURL((url) => url.search.includes('event=1'));
  await page.getByLabel('Would fit').fill('64 MiB');
  await page.getByText(/^64\.0 MiB (does not fit|fits)/).waitFor();
  await page.getByRole('slider', { name: 'Event' }).focus();
  await page.keyboard.press('End');
  for (const by of ['site', 'age', 'stream', 'class']) await page.getByLabel('Colour by').selectOption(by);
  await page.getByText('64.0 MiB does not fit').waitFor();
  await inEveryLight('blocks');
  // It plays backwards by itself, and stops when the button is pressed again.
  const back = page.getByRole('button', { name: 'Play backwards' });
  const last = await eventOf();
  await back.press('Enter');
  await page.waitForURL((url) => url.search.includes('event=') && !url.search.includes(`event=${last}`));
  // (By key: while it plays on a busy machine, the button does not hold still for a mouse.)
  await back.press('Enter');
  await page.locator('button[aria-label="Play backwards"][aria-pressed="false"]').waitFor();
  const stopped = await eventOf();
  await page.waitForURL((url) => url.searchParams.get('event') === String(stopped));
  await page.reload();
  await picture.waitFor();
  assert.equal(await eventOf(), stopped, 'the address says which event');

  // Within the step of the peak: by mouse and by keys, closer, to its neighbours, by site and over time. The address keeps all of it.
  await page.goto(deep);
  await page.getByRole('link', { name: 'Step at the peak' }).click();
  const stacked = page.getByRole('application', { name: /Blocks of the step/ });
  await stacked.waitFor();
  await page.waitForURL(/\/step\?rank=0&step=\d+$/);
  const stepOf = (url) => Number(new URL(url).searchParams.get('step'));
  const step = stepOf(page.url());
  await page.locator('svg.course').hover({ position: { x: 200, y: 380 } });
  await page.locator('.tip').getByText(/^[\d,]+ bytes, /).waitFor();
  await page.locator('.tip').getByText(/^Freed: /).waitFor();
  await inEveryLight('step');
  await page.mouse.move(0, 0);
  await page.locator('.tip').waitFor({ state: 'detached' });
  await stacked.focus();
  const said = () => page.locator('#step-said').innerText();
  await page.keyboard.press('ArrowRight');
  const bottom = await said();
  await page.keyboard.press('ArrowUp');
  assert.match(bottom, /bytes requested\)[^]*Allocated[^]*Freed/);
  assert.notEqual(await said(), bottom);
  for (const key of ['+', '+', '.', 'p']) await page.keyboard.press(key);
  await page.waitForURL(/from=\d+&to=\d+/);
  await page.getByLabel('Colour by').selectOption('site');
  await page.waitForURL(/colour=site&from=/);
  const close = page.url();
  await page.reload();
  await stacked.waitFor();
  await rests();
  assert.equal(page.url(), close, 'the address says which part');
  await stacked.focus();
  await page.keyboard.press('0');
  await page.waitForURL((url) => !url.search.includes('from='));
  await page.keyboard.press('>');
  await page.waitForURL((url) => stepOf(url) === step + 1);
  await page.getByRole('heading', { name: `Step ${step + 1} of epoch` }).waitFor();
  // (The picture keeps the focus: the next key goes on from there.)
  await page.keyboard.press('<');
  await page.getByRole('heading', { name: `Step ${step} of epoch` }).waitFor();
  await page.getByRole('link', { name: 'Previous step' }).click();
  await page.getByRole('heading', { name: `Step ${step - 1} of epoch` }).waitFor();
  await page.goBack();
  await page.getByRole('heading', { name: `Step ${step} of epoch` }).waitFor();
  await page.getByLabel('Across').selectOption('time');
  await page.waitForURL(/across=time/);
  // Drag a part closer, and back to the whole of it.
  await stacked.waitFor();
  const box = await page.locator('svg.course').boundingBox();
  await page.mouse.move(box.x + 0.2 * box.width, box.y + 100);
  await page.mouse.down();
  await page.mouse.move(box.x + 0.4 * box.width, box.y + 120, { steps: 3 });
  await page.mouse.up();
  await page.waitForURL(/across=time&from=\d+/);
  await page.getByRole('button', { name: 'Whole' }).click();
  await page.waitForURL((url) => !url.search.includes('from='));
  await page.goto(deep);
  await page.getByRole('link', { name: 'The peak', exact: true }).click();
  await page.getByRole('link', { name: 'Step at this moment' }).click();
  await page.waitForURL((url) => stepOf(url) === step);

  // Live memory by class, with the levels. A closer view shows it automatically; the user's choice is in the address.
  await page.goto(deep);
  await page.getByLabel('Classes').check();
  await page.locator('svg.course path.stacked').first().waitFor({ state: 'attached' });
  await page.getByText('Classes are those of the highest moment of each point, from single events.').waitFor();
  assert.match(page.url(), /classes=on/);
  await inEveryLight('classes');
  await page.getByLabel('Classes').uncheck();
  await page.locator('svg.course path.stacked').first().waitFor({ state: 'detached' });
  await page.goto(deep);
  await page.getByRole('application', { name: /Memory of/ }).focus();
  for (const key of ['p', '+', '+']) await page.keyboard.press(key);
  await page.locator('svg.course path.stacked').first().waitFor({ state: 'attached' });

  // Other settings, and a limit at which requests fail.
  await page.getByRole('link', { name: 'Under other settings' }).click();
  await page.getByRole('table', { name: /^Settings, without a limit/ }).waitFor();
  await page.getByText('The replay repeats the recording').waitFor();
  await inEveryLight('settings');
  const limit = page.getByLabel('Memory limit of the process');
  await limit.fill('16 GB');
  await limit.press('Enter');
  await page.getByText('16 GB is not a size').waitFor();
  await limit.fill('20MiB');
  await limit.press('Enter');
  await page.getByRole('table', { name: /^Settings under a limit of 20\.0 MiB/ }).waitFor();
  await page.getByText(/out of memory.* at a request for/).first().waitFor();
  assert.match(page.url(), /limit=20MiB/);
  // Other sizes: the number is in the address, and in the field when the address is opened.
  await page.getByLabel('What number was this recorded at?').fill('8');
  await page.getByRole('button', { name: 'Forecast' }).click();
  await page.getByRole('table', { name: /^Highest memory by size, forecast from one recording at 8/ }).waitFor();
  assert.match(page.url(), /limit=20MiB&size=8/);
  await page.reload();
  await page.locator('svg.sizes path.peak').waitFor({ state: 'attached' });
  assert.equal(await page.getByLabel('What number was this recorded at?').inputValue(), '8');
  await inEveryLight('sizes');

  // Alerts: the button of a silence ends it, even if another user made it.
  await page.goto(`${origin}/alerts`);
  await page.getByText('Nothing is kept quiet.').waitFor();
  await page.evaluate("fetch('/api/v1/silence?job=demo&kind=leak&minutes=60&comment=known', { method: 'POST' })");
  await page.reload();
  await page.getByRole('cell', { name: 'known' }).waitFor();
  await inEveryLight('alerts');
  await page.getByRole('button', { name: /End the silence about job demo, leak/ }).focus();
  await page.keyboard.press('Enter');
  await page.getByText('Nothing is kept quiet.').waitFor();

  const loaded = ['page.js', 'page.css'].map(async (name) => gzipSync(await (await page.request.get(`${origin}/assets/${name}`)).body()).length);
  const compressed = (await Promise.all(loaded)).reduce((sum, bytes) => sum + bytes);
  assert.ok(compressed <= LOADED_MAX, `${compressed} bytes of script and style`);
  console.log(`${compressed} bytes of script and style, compressed`);

  await page.goto(`${origin}/`);
  // (The key works once the list is drawn.)
  await page.getByRole('cell', { name: 'finished' }).waitFor();
  await page.keyboard.press('/');
  await page.keyboard.type('nothing of that name');
  await page.getByText('0 of 1 job: none has all these words').waitFor();

  // Another browser has the address and not the cookie.
  const other = await (await chromium.newContext()).newPage();
  await other.goto(address);
  assert.match(await other.locator('body').innerText(), /was used before/);
  await other.goto(there);
  await other.getByText('open the address that `memctl ui` printed').waitFor();

  assert.deepEqual(complaints, []);
  console.log('every view is sound');
} finally {
  await chromium.close();
}
assert.equal(await ended(served.child), 0);
