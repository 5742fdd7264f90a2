// README's pictures of the page, from the demo's job in a real browser.
//
// Guarantees: the pictures show what the binary shows; one size, one light, nothing moved by hand.
//
//     npm ci && node shots.mjs PATH_OF_MEMCTL [FOLDER]

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const [, , memctl = 'memctl', folder = fileURLToPath(new URL('../../docs/images', import.meta.url))] = process.argv;
mkdirSync(folder, { recursive: true });

const served = spawn(memctl, ['demo', '--ui', '-q'], { stdio: ['ignore', 'pipe', 'inherit'] });
const [address] = await once(createInterface({ input: served.stdout }), 'line');
const { origin } = new URL(address);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
try {
  const page = await browser.newPage({ viewport: { width: 1080, height: 640 } });
  const shot = async (name) => page.screenshot({ path: `${folder}/${name}.png` });
  await page.goto(address);
  await page.getByRole('link', { name: 'demo', exact: true }).click();
  await page.locator('svg.course path.floor').waitFor({ state: 'attached' });
  await page.locator('canvas.heat').last().waitFor();
  await page.evaluate("document.getElementById('course').scrollIntoView()");
  await shot('job');
  await page.getByRole('link', { name: 'Show me what grew' }).first().click();
  await page.getByRole('tree').waitFor();
  await shot('difference');
  await page.goto(`${origin}/jobs/demo/blocks?rank=0`);
  await page.locator('canvas.blocks').waitFor();
  await page.getByLabel('Would fit').fill('64 MiB');
  await page.getByRole('application').focus();
  for (const key of ['ArrowDown', 'ArrowDown', 'ArrowDown']) await page.keyboard.press(key);
  await page.locator('#block-said ol').waitFor();
  await shot('blocks');
} finally {
  await browser.close();
  served.kill('SIGTERM');
}
await once(served, 'exit');
