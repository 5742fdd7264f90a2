// The page in a real browser: a stranger's way from the list of jobs to the leaking line, and what holds in every view.
//
// Guarantees: everything runs for real: the binary, its demo's job, Chromium. Fails where the line takes more than four
// clicks, a view has a finding of axe, something is requested from elsewhere, or the browser complains.
//
//     npm ci && node walk.mjs PATH_OF_MEMCTL [FOLDER_FOR_SCREENSHOTS]

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

const [, , memctl = 'memctl', folder] = process.argv;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const CLICKS_MAX = 4;

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
  // The policy of the page keeps out everything but its own script: axe comes in through the debugger.
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
      await page.waitForFunction('new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))');
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
  const told = async () => page.evaluate("document.activeElement.getAttribute('aria-level')");
  assert.equal(await told(), '2');
  await page.keyboard.press('ArrowUp');
  assert.equal(await told(), '1');

  // Addresses that are sent to a colleague.
  const there = page.url();
  await page.goBack();
  assert.equal(page.url(), deep);
  await page.getByRole('heading', { name: 'Verdict' }).waitFor();
  await page.goto(there);
  await page.getByRole('tree').waitFor();

  // The course by keys: a cursor, a zoom, a moment; the address keeps what is in view.
  await page.goto(deep);
  const plot = page.getByRole('application');
  await plot.focus();
  for (const key of ['p', 'a', '+', '+', 'ArrowRight', 'Alt+ArrowRight', 'b']) await page.keyboard.press(key);
  await page.waitForFunction("location.search.includes('since=')");
  await page.reload();
  await plot.waitFor();
  assert.ok(page.url().includes('since='));
  await plot.focus();
  await page.keyboard.press('p');
  await page.keyboard.press('Enter');
  await page.getByRole('tree').waitFor();
  assert.match(page.url(), /\/moment\?rank=0&at=2/);
  await inEveryLight('moment');

  await page.goto(`${origin}/`);
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
