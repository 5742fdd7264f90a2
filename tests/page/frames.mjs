// How smoothly a job's timeline zooms and pans in a real browser, without a GPU: a measurement, not a test.
//
// Guarantees: a real daemon on a given folder, Chromium, wheel events as a hand makes them. Prints the time from the address
// to the first picture, the frames while the picture moves, and the memory of the browser's processes.
//
//     npm ci && node frames.mjs PATH_OF_MEMCTL DATA_FOLDER JOB

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

const [, , memctl, folder, job] = process.argv;
const TURNS = 240;

const flags = ['daemon', '--data-dir', folder, '--listen', 'http://127.0.0.1:0', '--http-listen', 'http://127.0.0.1:0'];
const daemon = spawn(memctl, flags, { stdio: ['ignore', 'pipe', 'ignore'] });
const places = [];
for await (const line of createInterface({ input: daemon.stdout })) {
  places.push(...(line.match(/http:\/\/127\.0\.0\.1:\d+/g) ?? []));
  if (places.length >= 2) break;
}

/** Memory of the browser's processes below this one, in MB: proportional set size, private memory, and the renderers'. */
function bytesOf(parent) {
  const list = execFileSync('ps', ['-eo', 'pid=,ppid=,args='], { encoding: 'utf8' }).trim().split('\n');
  const rows = list.map((row) => row.trim().split(/\s+/));
  const below = new Set([String(parent)]);
  for (let before = 0; before !== below.size; ) {
    before = below.size;
    for (const [pid, above] of rows) if (below.has(above)) below.add(pid);
  }
  const kib = (pid, what) => {
    try {
      const rollup = execFileSync('cat', [`/proc/${pid}/smaps_rollup`], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
      return [...rollup.matchAll(new RegExp(`^(?:${what}):\\s+(\\d+)`, 'gm'))].reduce((sum, [, kib]) => sum + Number(kib), 0);
    } catch {
      return 0; // It ended meanwhile.
    }
  };
  const browsers = rows.filter(([pid, , name]) => below.has(pid) && /chrom/.test(name ?? ''));
  const of = (what, type) => browsers.filter((row) => row.join(' ').includes(type)).reduce((sum, [pid]) => sum + kib(pid, what), 0) * 1024 / 1e6;
  const own = 'Private_Clean|Private_Dirty';
  return { all: of('Pss', ''), own: of(own, ''), page: of(own, '--type=renderer') };
}

const percentile = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
try {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  let [tiles, cancelled] = [0, 0];
  page.on('request', (request) => { tiles += Number(request.url().includes('/tiles?')); });
  page.on('requestfailed', (request) => { cancelled += Number(request.url().includes('/tiles?')); });
  const begun = performance.now();
  await page.goto(`${places[1]}/jobs/${job}?rank=0`);
  await page.locator('svg.course path.floor').waitFor({ state: 'attached' });
  const painted = performance.now() - begun;
  await page.waitForTimeout(1000);
  const course = page.locator('svg.course').first();
  await course.scrollIntoViewIfNeeded();
  const box = await course.boundingBox();
  await page.evaluate(() => {
    const frames = [];
    globalThis.frames_seen = frames;
    let before = performance.now();
    const next = (now) => {
      frames.push(now - before);
      before = now;
      requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
  });
  await page.mouse.move(box.x + box.width * 0.4, box.y + box.height / 2);
  for (let turn = 0; turn < TURNS; turn += 1) {
    // Zooms in, pans, zooms out, and pans again.
    const way = Math.floor(turn / 15) % 4;
    const modifier = way % 2 === 0 ? 'Control' : 'Shift';
    await page.keyboard.down(modifier);
    await page.mouse.wheel(0, way === 0 ? -100 : 100);
    await page.keyboard.up(modifier);
    await page.waitForTimeout(25);
  }
  const frames = (await page.evaluate(() => globalThis.frames_seen)).slice(2).sort((a, b) => a - b);
  const memory = bytesOf(process.pid);
  const ms = (value) => `${value.toFixed(1)} ms`;
  console.log(`first picture ${ms(painted)}; ${frames.length} frames, median ${ms(percentile(frames, 0.5))}, 95th ${ms(percentile(frames, 0.95))}, slowest ${ms(frames.at(-1))}`);
  console.log(`${tiles} tiles asked for, ${cancelled} of them cancelled; browser ${memory.own.toFixed(0)} MB of its own, of these the page ${memory.page.toFixed(0)}, ${memory.all.toFixed(0)} MB with its part of what is shared`);
  if (tiles < TURNS / 10) throw new Error('the picture did not move: nothing was measured');
} finally {
  await browser.close();
  daemon.kill('SIGTERM');
}
await once(daemon, 'exit');
