// The same recording in PyTorch's viewer of snapshots (memory_viz) and on memctl's page, in the same Chromium: a measurement, not a
// test.
//
// Guarantees: the viewer is PyTorch's own script, unchanged, served from this machine with the d3 that it loads from a network.
// Prints for each the time until the first picture, the peak memory of all processes of the browser meanwhile, and whether the
// tab crashed. memctl has to import the recording first; that time is printed on its own. Refuses to wait longer than MINUTES.
//
//     npm ci && node beside.mjs PATH_OF_MEMCTL SNAPSHOT.pickle FOLDER
//
// FOLDER has PyTorch's torch/utils/viz/MemoryViz.js and d3.js, d3 5 in one file (`npm i d3@5 esbuild`,
// `echo "export * from 'd3'" | esbuild --bundle --format=esm --outfile=d3.js`). Snapshots of any size: snapshots.py.

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createReadStream, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

const [, , memctl, snapshot, folder] = process.argv;
const MINUTES = Number(process.env.MINUTES ?? 10);

/** The proportional set size of the browser's processes below this one, in KiB. */
function browserKib() {
  const rows = execFileSync('ps', ['-eo', 'pid=,ppid=,comm='], { encoding: 'utf8' }).trim().split('\n').map((row) => row.trim().split(/\s+/));
  const below = new Set([String(process.pid)]);
  for (let before = 0; before !== below.size; ) {
    before = below.size;
    for (const [pid, above] of rows) if (below.has(above)) below.add(pid);
  }
  const kib = (pid) => {
    try {
      return Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))?.[1] ?? 0);
    } catch {
      return 0; // It ended meanwhile.
    }
  };
  return rows.filter(([pid, , name]) => below.has(pid) && /chrom/.test(name)).reduce((sum, [pid]) => sum + kib(pid), 0);
}

/** Opens an address in a browser of its own, and returns the time and the memory until the first picture. */
async function looked(address, picture, prepare) {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
  try {
    const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    let highest = 0;
    const watch = setInterval(() => { highest = Math.max(highest, browserKib()); }, 500);
    const crashed = new Promise((done) => { page.on('crash', () => { done('the tab crashed'); }); });
    const failed = new Promise((done) => { page.on('pageerror', (error) => { done(`the script failed: ${String(error).slice(0, 200)}`); }); });
    await prepare?.(page);
    const begun = performance.now();
    const there = (async () => {
      await page.goto(address, { timeout: MINUTES * 60_000 });
      await page.locator(picture).first().waitFor({ state: 'attached', timeout: MINUTES * 60_000 });
      return null;
    })().catch((error) => `no picture: ${String(error).split('\n')[0]}`);
    const trouble = await Promise.race([there, crashed, failed]);
    const seconds = (performance.now() - begun) / 1000;
    highest = Math.max(highest, browserKib());
    clearInterval(watch);
    return `${trouble ?? 'first picture'} after ${seconds.toFixed(1)} s; browser ${(highest * 1024 / 1e6).toFixed(0)} MB at most`;
  } finally {
    await browser.close();
  }
}

console.log(`${(statSync(snapshot).size / 1e6).toFixed(0)} MB`);
const page = `<!doctype html><body><script type="module">import {add_remote_files} from '/MemoryViz.js';
add_remote_files([{ name: 'snapshot', url: '/snapshot.pickle' }]);</script>`;
const server = createServer((request, answer) => {
  if (request.url === '/') return answer.setHeader('content-type', 'text/html').end(page);
  const place = request.url === '/snapshot.pickle' ? snapshot : join(folder, 'MemoryViz.js');
  answer.setHeader('content-type', request.url === '/snapshot.pickle' ? 'application/octet-stream' : 'text/javascript');
  return createReadStream(place).pipe(answer);
}).listen(0, '127.0.0.1');
await once(server, 'listening');
if (!process.env.ONLY || process.env.ONLY === 'memory_viz') {
  const said = await looked(`http://127.0.0.1:${server.address().port}/`, 'svg polygon, svg path', async (of) => {
    await of.route(/^https:/, (route) => route.fulfill({ contentType: 'text/javascript', headers: { 'access-control-allow-origin': '*' }, path: join(folder, 'd3.js') }));
  });
  console.log(`memory_viz: ${said}`);
}
server.close();
if (process.env.ONLY === 'memory_viz') process.exit(0);

const home = mkdtempSync(join(tmpdir(), 'memctl-beside-'));
try {
  const begun = performance.now();
  execFileSync(memctl, ['import', '-q', '--data-dir', home, '--job', 'beside', snapshot], { stdio: ['ignore', 'ignore', 'inherit'] });
  console.log(`memctl: imported after ${((performance.now() - begun) / 1000).toFixed(1)} s`);
  const daemon = spawn(memctl, ['daemon', '--data-dir', home, '--listen', 'http://127.0.0.1:0', '--http-listen', 'http://127.0.0.1:0'], { stdio: ['ignore', 'pipe', 'ignore'] });
  const places = [];
  for await (const line of createInterface({ input: daemon.stdout })) {
    places.push(...(line.match(/http:\/\/127\.0\.0\.1:\d+/g) ?? []));
    if (places.length >= 2) break;
  }
  console.log(`memctl: ${await looked(`${places[1]}/jobs/beside?rank=0`, 'svg.course path.floor')}`);
  const status = readFileSync(`/proc/${daemon.pid}/status`, 'utf8');
  console.log(`memctl: daemon ${(Number(/^VmHWM:\s+(\d+)/m.exec(status)?.[1] ?? 0) * 1024 / 1e6).toFixed(0)} MB at most`);
  daemon.kill('SIGTERM');
  await once(daemon, 'exit');
} finally {
  rmSync(home, { recursive: true, force: true });
}
