// A process of 100,000 live blocks and a job of 4,096 ranks in a real browser, without a GPU: a measurement, not a test.
//
// Guarantees: a real daemon, which has imported what `large.py` makes; Chromium; keys as a hand presses them. Prints the time
// from the address to the first picture and the frames while it moves. Fails if an outlier is not named.
//
//     npm ci && node large.mjs PATH_OF_MEMCTL

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { browser, daemon, ended, output, temporary } from './stage.mjs';

const [, , memctl = 'memctl'] = process.argv;
const [BLOCKS, RANKS, EPOCHS] = [100_000, 4096, 8];

const folder = temporary();
const made = (...what) => execFileSync('python3', [join(import.meta.dirname, 'large.py'), ...what.map(String)]);
made('blocks', BLOCKS, join(folder, 'blocks.pickle'));
made('ranks', RANKS, EPOCHS, join(folder, 'ranks'));
const served = await daemon(memctl, temporary());
const importing = (job, from) => {
  const begun = performance.now();
  output(memctl, ['import', '-q', '--daemon', served.grpc, '--job', job, from]);
  console.log(`${job}: imported in ${((performance.now() - begun) / 1000).toFixed(1)} s`);
};
importing('blocks', join(folder, 'blocks.pickle'));

const chromium = await browser();
const percentile = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];

/** The time from a view's address to its first picture. */
async function opened(path, picture) {
  const page = await chromium.newPage({ viewport: { width: 1280, height: 900 } });
  const begun = performance.now();
  await page.goto(`${served.http}${path}`);
  await page.locator(picture).first().waitFor({ timeout: 120_000 });
  await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(() => done(true))); }));
  return { page, painted: performance.now() - begun };
}

/** The frames while something is done. */
async function frames(page, doing) {
  await page.evaluate(() => {
    const seen = [];
    globalThis.frames_seen = seen;
    let before = performance.now();
    const next = (now) => { seen.push(now - before); before = now; requestAnimationFrame(next); };
    requestAnimationFrame(next);
  });
  await doing();
  const seen = (await page.evaluate(() => globalThis.frames_seen)).slice(2).sort((a, b) => a - b);
  return `${seen.length} frames, median ${percentile(seen, 0.5).toFixed(1)} ms, 95th ${percentile(seen, 0.95).toFixed(1)} ms, slowest ${seen.at(-1).toFixed(1)} ms`;
}

try {
  const blocks = await opened('/jobs/blocks/blocks?rank=0&at=end', 'main canvas');
  console.log(`${BLOCKS} blocks: first picture ${blocks.painted.toFixed(0)} ms`);
  const picture = blocks.page.locator('main canvas').first();
  const box = await picture.boundingBox();
  console.log(`  hovered: ${await frames(blocks.page, async () => {
    for (let at = 0; at < 100; at += 1) await blocks.page.mouse.move(box.x + 20 + ((at * 37) % (box.width - 40)), box.y + 20 + ((at * 53) % Math.min(box.height - 40, 700)));
  })}`);
  // (Keys are heard where the picture has the focus.)
  await blocks.page.mouse.click(box.x + 200, box.y + 60);
  console.log(`  scrubbed by keys: ${await frames(blocks.page, async () => {
    for (let at = 0; at < 100; at += 1) {
      await blocks.page.keyboard.press(',');
      await blocks.page.waitForTimeout(16);
    }
    await blocks.page.waitForURL((url) => url.searchParams.has('event'));
  })}`);
  await blocks.page.close();

  importing('ranks', join(folder, 'ranks'));
  const ranks = await opened('/jobs/ranks', 'section[aria-labelledby=ranks] canvas');
  console.log(`${RANKS} ranks by ${EPOCHS} epochs: first picture ${ranks.painted.toFixed(0)} ms`);
  await ranks.page.getByRole('link', { name: 'rank 5', exact: true }).first().waitFor();
  const map = await ranks.page.locator('section[aria-labelledby=ranks] canvas').last().boundingBox();
  await ranks.page.mouse.move(map.x + map.width / 2, map.y + 60);
  console.log(`  scrolled: ${await frames(ranks.page, async () => {
    for (let at = 0; at < 100; at += 1) {
      await ranks.page.mouse.wheel(0, 120);
      await ranks.page.waitForTimeout(16);
    }
  })}`);
} finally {
  await chromium.close();
}
assert.equal(await ended(served.child), 0);
