// A report in a real browser: the file that `memctl report` writes, opened from a disk, without a network.
//
// Guarantees: everything runs for real: the binary, its bundled demo or a folder of recordings, Chromium. Fails if a view is
// not drawn, something is requested, the browser complains, axe has a finding at 1,280 or 390 px, the page does not show the
// command for a view that the file lacks, or the page is silent where no script runs.
//
//     npm ci && node report.mjs PATH_OF_MEMCTL [FOLDER_FOR_SCREENSHOTS [FOLDER_OF_RECORDINGS]]

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';

const [, , memctl = 'memctl', folder, recordings = resolve(import.meta.dirname, '../data/recordings/gpt_val_graph_leak')] = process.argv;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const BYTES_MAX = 3_000_000;

const home = mkdtempSync(join(tmpdir(), 'memctl-report-'));
const run = (...flags) => execFileSync(memctl, [...flags, '--data-dir', home], { stdio: ['ignore', 'pipe', 'inherit'] });
const file = join(home, 'report.html');
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
try {
  run('import', '-q', '--job', 'reported', recordings);
  run('report', '-q', '--job', 'reported', '-f', file, '--size', '8', '--device-memory', '2GiB');
  const plain = join(home, 'plain.html');
  run('report', '-q', '--job', 'reported', '-f', plain);
  assert.ok(statSync(file).size <= BYTES_MAX, `${statSync(file).size} bytes`);
  const complaints = [];
  for (const [width, colorScheme] of [[1280, 'light'], [390, 'dark']]) {
    const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme, offline: true });
    const page = await context.newPage();
    page.on('console', (message) => {
      // (A graphics driver's messages about its speed without a GPU do not concern the page.)
      if (['error', 'warning'].includes(message.type()) && !message.text().includes('GPU stall')) complaints.push(message.text());
    });
    page.on('pageerror', (error) => complaints.push(String(error)));
    page.on('request', (request) => {
      if (request.url() !== pathToFileURL(file).href) complaints.push(`requested ${request.url()}`);
    });
    const debuggerOf = await context.newCDPSession(page);
    const looked = async (name) => {
      const evaluated = await debuggerOf.send('Runtime.evaluate', { expression: `${axe};axe.run()`, awaitPromise: true, returnByValue: true });
      const { violations } = evaluated.result.value;
      assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), [], `${name} at ${width}`);
      if (folder) await page.screenshot({ path: `${folder}/report-${name}-${width}.png`, fullPage: true });
      console.log(`${name} at ${width}, ${colorScheme}`);
    };
    await page.goto(pathToFileURL(file).href);
    await page.locator('.verdict .headline').waitFor();
    await page.locator('svg.course path.floor').waitFor({ state: 'attached' });
    await looked('job');
    const views = page.getByRole('navigation', { name: 'Views of this report' });
    const turn = async (name) => {
      await views.getByRole('link', { name, exact: true }).focus();
      await page.keyboard.press('Enter');
      assert.ok(new URL(page.url()).hash.startsWith('#/jobs/'), page.url());
    };
    await turn('What changed');
    await page.getByText('validate_keeping_graph').first().waitFor();
    await looked('change');
    await turn('The peak');
    await page.locator('section[aria-labelledby=flame] figure').waitFor();
    await page.locator('section[aria-labelledby=ledger] table').waitFor();
    await page.locator('section[aria-labelledby=anatomy] details[open] table').first().waitFor();
    await looked('peak');
    await turn('Settings');
    await page.getByRole('table', { name: /^Settings, without a limit/ }).waitFor();
    const sizes = page.getByRole('table', { name: /^Highest memory by size, forecast from one recording at 8/ });
    await sizes.waitFor();
    await page.getByText(/^The largest size that fits in 2\.00 GiB is \d/).waitFor();
    await page.getByText(/^One recording only, which is weaker than two/).waitFor();
    await looked('settings');
    await turn('Blocks at the peak');
    await page.locator('main canvas').first().waitFor();
    await looked('blocks');
    await page.goto(`${pathToFileURL(file).href}#/jobs/reported?rank=0&classes=on`);
    await page.locator('svg.course path.stacked').first().waitFor({ state: 'attached' });
    // Every view has an address of its own; for a view that the file lacks, the page shows the command.
    await page.goto(`${pathToFileURL(file).href}#/jobs/reported/moment?rank=0&at=epoch:1`);
    await page.reload();
    await page.getByText('`memctl sites --job reported --rank 0 --epoch-end 1` shows it').first().waitFor();
    await context.close();
  }
  const silent = await browser.newContext({ javaScriptEnabled: false, offline: true });
  const page = await silent.newPage();
  await page.goto(pathToFileURL(file).href);
  await page.getByText('validate_keeping_graph').first().waitFor();
  assert.ok((await page.locator('table').count()) >= 3);
  const without = await (await browser.newContext({ offline: true })).newPage();
  await without.goto(`${pathToFileURL(plain).href}#/jobs/reported/settings?rank=0`);
  await without.getByText(/^Other sizes are not in this file\./).waitFor();
  assert.deepEqual(complaints, []);
} finally {
  await browser.close();
  rmSync(home, { recursive: true, force: true });
}
