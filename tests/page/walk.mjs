// The page in a real browser: a stranger's way from the list of jobs to the leaking line, and what holds in every view.
//
// Guarantees: everything runs for real: the binary, its demo's job, a daemon that receives a job, Chromium. Fails where the
// line takes more than four clicks, a view has a finding of axe, something is requested from elsewhere, the browser complains,
// or what the page loads has more than 300 KB, compressed.
//
//     npm ci && node walk.mjs PATH_OF_MEMCTL [FOLDER_FOR_SCREENSHOTS [FOLDER_OF_RECORDINGS]]
//
// With a folder of recordings a daemon is started, and the list of jobs has to follow what it receives.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { gzipSync } from 'node:zlib';
import { chromium } from 'playwright-core';

const [, , memctl = 'memctl', folder, recordings] = process.argv;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const CLICKS_MAX = 4;
const LOADED_MAX = 300_000;

/** A daemon receives a job while its list is open: the list and the job's own page follow without being loaded again. */
async function follows(context, from, complaints) {
  const home = mkdtempSync(join(tmpdir(), 'memctl-walk-'));
  const flags = ['daemon', '--data-dir', home, '--listen', 'http://127.0.0.1:0', '--http-listen', 'http://127.0.0.1:0'];
  const daemon = spawn(memctl, flags, { stdio: ['ignore', 'pipe', 'pipe'] });
  const places = [];
  for await (const line of createInterface({ input: daemon.stdout })) {
    places.push(...(line.match(/http:\/\/127\.0\.0\.1:\d+/g) ?? []));
    if (places.length >= 2) break;
  }
  const [grpc, http] = places;
  try {
    const page = await context.newPage();
    page.on('console', (message) => {
      if (message.type() === 'error') complaints.push(message.text());
    });
    await page.goto(`${http}/`);
    await page.getByText('No jobs yet').waitFor();
    const importing = spawn(memctl, ['import', '-q', '--daemon', grpc, '--job', 'arriving', from], { stdio: ['ignore', 'ignore', 'inherit'] });
    const imported = once(importing, 'exit');
    await page.getByRole('link', { name: 'arriving' }).waitFor();
    await page.getByRole('row', { name: /arriving finished/ }).waitFor();
    assert.equal((await imported)[0], 0);
    await page.locator('.spark path.reserved').waitFor({ state: 'attached' });
    await page.close();
    console.log('the list follows what the daemon receives');
  } finally {
    daemon.kill('SIGTERM');
    await once(daemon, 'exit');
    rmSync(home, { recursive: true, force: true });
  }
}

const served = spawn(memctl, ['demo', '--ui', '-q'], { stdio: ['ignore', 'pipe', 'inherit'] });
const [address] = await once(createInterface({ input: served.stdout }), 'line');
const { origin } = new URL(address);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });

try {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, bypassCSP: false });
  const page = await context.newPage();
  const complaints = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('request', (request) => {
    if (!request.url().startsWith(`${origin}/`)) complaints.push(`requested ${request.url()}`);
  });

  const shot = async (name) => {
    if (folder) await page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
  };
  // The policy of the page keeps out everything but its own script: axe comes in through the debugger, and what is waited for
  // is looked at from outside.
  const sound = async (where) => {
    const findings = await page.evaluate(`${axe}; axe.run().then((result) => result.violations.map((one) =>
      one.id + ': ' + one.nodes.map((node) => node.target.join(' ') + ' ' + (node.any[0]?.message ?? '')).slice(0, 3).join('; ')))`);
    assert.deepEqual(findings, [], `axe on ${where}`);
    const tooWide = await page.evaluate('document.documentElement.scrollWidth - document.documentElement.clientWidth');
    assert.ok(tooWide <= 0, `${where} is ${tooWide} pixels wider than the screen`);
  };
  const inEveryLight = async (name) => {
    for (const [width, light] of [[1280, 'light'], [390, 'light'], [1280, 'dark']]) {
      await page.setViewportSize({ width, height: 900 });
      await page.emulateMedia({ colorScheme: light });
      await page.evaluate('new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))');
      await shot(`${name}-${width}-${light}`);
      await sound(`${name} at ${width}, ${light}`);
    }
    await page.setViewportSize({ width: 1280, height: 900 });
    await page.emulateMedia({ colorScheme: 'light' });
  };

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

  // The same with the keyboard alone: zoomed by Enter, back by Escape, walked by arrows.
  await page.keyboard.press('Escape');
  await page.keyboard.press('Home');
  await page.keyboard.press('ArrowDown');
  const isAt = async (level) => page.locator(`[role=treeitem][aria-level="${level}"]:focus`).waitFor();
  await isAt(2);
  await page.keyboard.press('ArrowUp');
  await isAt(1);

  // Addresses that are sent to a colleague.
  const there = page.url();
  await page.goBack();
  assert.equal(page.url(), deep);
  await page.getByRole('heading', { name: 'Verdict' }).waitFor();
  await page.goto(there);
  await page.getByRole('tree').waitFor();

  // The course by keys: a cursor, a zoom, a moment; the address keeps what is in view.
  await page.goto(deep);
  const plot = page.getByRole('application', { name: /Memory of/ });
  await plot.focus();
  for (const key of ['p', 'a', '+', '+', 'ArrowRight', 'Alt+ArrowRight', 'b']) await page.keyboard.press(key);
  await page.waitForURL((url) => url.search.includes('since='));
  await page.reload();
  await plot.waitFor();
  assert.ok(page.url().includes('since='));
  await plot.focus();
  await page.keyboard.press('p');
  await page.keyboard.press('Enter');
  await page.getByRole('tree').waitFor();
  assert.match(page.url(), /\/moment\?rank=0&at=2/);
  await inEveryLight('moment');

  // Other ranks over the course, and the pins that were set on it, known to the moment by name.
  await page.goto(deep);
  await page.getByLabel('With ranks').fill('1, 2');
  await page.locator('path.over1').waitFor({ state: 'attached' });
  await page.waitForURL((url) => url.search.includes('over='));
  await page.getByRole('application', { name: /Memory of/ }).focus();
  for (const key of ['p', 'a', 'ArrowRight', 'b']) await page.keyboard.press(key);
  await page.getByRole('link', { name: 'What changed from A to B' }).click();
  await page.getByRole('heading', { name: /from pin A to pin B/ }).waitFor();
  await page.getByRole('tree').or(page.getByText('No stack holds more or less')).first().waitFor();

  // The heat map by keys: the odd rank is on top.
  await page.goto(deep);
  const heat = page.getByRole('application', { name: /Ranks by epochs/ });
  await heat.focus();
  await page.keyboard.press('ArrowDown');
  assert.match(await page.locator('#heat-said').innerText(), /^rank 0, end of epoch 5: .* against the median\. left the others/);
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  await page.waitForURL(/rank=[1-3]/);

  // Blocks: by mouse and by keys, forwards and back, and a request that finds no place.
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
  const eventOf = () => new URL(page.url()).searchParams.get('event');
  await page.keyboard.press('>');
  await page.waitForURL((url) => url.search.includes('event='));
  const before = Number(eventOf());
  await page.keyboard.press(',');
  await page.waitForURL((url) => url.search.includes(`event=${before - 1}`));
  await page.getByRole('slider', { name: 'Event' }).focus();
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
  // It plays back by itself, and stops when told to.
  const back = page.getByRole('button', { name: 'Play backwards' });
  const last = eventOf();
  await back.click();
  await page.waitForURL((url) => !url.search.includes(`event=${last}`));
  await back.click();
  const told = page.url();
  await page.reload();
  await picture.waitFor();
  assert.equal(page.url(), told, 'the address says which event');

  // Alerts: a silence that others made ends by its button.
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

  if (recordings) await follows(context, recordings, complaints);

  await page.goto(`${origin}/`);
  // (The key is heard once the list is there.)
  await page.getByRole('cell', { name: 'finished' }).waitFor();
  await page.keyboard.press('/');
  await page.keyboard.type('nothing of that name');
  await page.getByText('0 of 1 job,').waitFor();

  // Another browser has the address and not the cookie.
  const other = await (await browser.newContext()).newPage();
  await other.goto(address);
  assert.match(await other.locator('body').innerText(), /was used before/);
  await other.goto(there);
  await other.getByText('open the address that `memctl ui` printed').waitFor();

  assert.deepEqual(complaints, []);
  console.log('every view is sound');
} finally {
  await browser.close();
  served.kill('SIGTERM');
}
const [code] = await once(served, 'exit');
assert.equal(code, 0);
