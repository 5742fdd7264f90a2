// Every view as a picture, light and dark, compared with the accepted one.
//
// Guarantees: fonts, clock and recordings are fixed (`stage.mjs`), and each picture is taken twice, with a reload in between: two
// that differ fail, so that a difference from the accepted one is a change of the page. Up to one pixel of a thousand may
// differ, and edges of letters are ignored: another Chromium draws them differently. A picture that differs is left in a
// folder with the difference. Refuses to accept a picture without MEMCTL_PICTURES=accept.
//
//     npm ci && node pictures.mjs PATH_OF_MEMCTL FOLDER_OF_RECORDINGS FOLDER_OF_ACCEPTED FOLDER_FOR_DIFFERENCES
//
// MEMCTL_PICTURES=accept replaces the accepted ones.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { crc32, deflateSync } from 'node:zlib';
import pixelmatch from 'pixelmatch';
import { PNG } from 'pngjs';
import { browser, daemon, ended, output, settled, temporary, visit } from './stage.mjs';

const [, , memctl = 'memctl', recordings, accepted, differences] = process.argv;
const accepts = process.env.MEMCTL_PICTURES === 'accept';
/** Part of a picture that may differ, and how far two colours may be apart (0 to 1) to be the same. */
const TOLERANCE = 0.001;
const SAME = 0.2;
/** All accepted pictures together. */
const BYTES_MAX = 1_500_000;
const JOB = 'cnn_rank0_cache';
const VIEWS = [
  ['jobs', '/', '.spark path.reserved'],
  ['job', `/jobs/${JOB}?rank=0`, 'canvas.heat'],
  ['difference', `/jobs/${JOB}/moment?rank=0&from=epoch:1&at=epoch:5`, '[role=tree]'],
  ['moment', `/jobs/${JOB}/moment?rank=0&at=peak`, '[role=tree]'],
  ['step', `/jobs/${JOB}/step?rank=0&step=45`, 'canvas.painted'],
  ['blocks', '/jobs/oom_by_fragmentation/blocks?rank=1&event=1500', 'canvas.blocks'],
  ['classes', `/jobs/${JOB}?rank=0&classes=on`, 'path.stacked'],
  ['settings', '/jobs/oom_by_fragmentation/settings?rank=1', 'svg.setting'],
  ['sizes', `/jobs/${JOB}/settings?rank=0&limit=512MiB&size=8`, 'svg.sizes'],
  ['alerts', '/alerts', 'h2'],
  ['sign-in', '/', 'form.sign-in'],
];

/** Fewer colours, so that a picture is small: as many levels as leave at most 256 of them. */
function reduced({ width, height, data }) {
  for (let bits = 5; bits > 1; bits -= 1) {
    const [step, palette, places] = [2 ** (8 - bits), new Map(), new Uint8Array(width * height)];
    const level = (value) => Math.min(255, Math.round(value / step) * step);
    for (let at = 0; at < places.length && palette.size <= 256; at += 1) {
      const colour = (level(data[4 * at]) << 16) | (level(data[4 * at + 1]) << 8) | level(data[4 * at + 2]);
      if (!palette.has(colour)) palette.set(colour, palette.size);
      places[at] = palette.get(colour);
    }
    if (palette.size <= 256) return { width, height, palette: [...palette.keys()], places };
  }
  throw new Error('too many colours');
}

/** A picture as PNG with a palette, which pngjs reads and does not write. */
function palettePng({ width, height, palette, places }) {
  const chunk = (name, bytes) => {
    const body = Buffer.concat([Buffer.from(name, 'latin1'), bytes]);
    const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
    length.writeUInt32BE(bytes.length);
    sum.writeUInt32BE(crc32(body));
    return Buffer.concat([length, body, sum]);
  };
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 3, 0, 0, 0], 8);
  const lines = Buffer.alloc((width + 1) * height);
  for (let y = 0; y < height; y += 1) lines.set(places.subarray(y * width, (y + 1) * width), y * (width + 1) + 1);
  const colours = Buffer.from(palette.flatMap((colour) => [colour >> 16, (colour >> 8) & 255, colour & 255]));
  const signature = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);
  return Buffer.concat([signature, chunk('IHDR', head), chunk('PLTE', colours), chunk('IDAT', deflateSync(lines, { level: 9 })), chunk('IEND', Buffer.alloc(0))]);
}

/** How two pictures differ, in words and as a picture; nothing if they are the same. */
function differing(one, other) {
  const [a, b] = [one, other].map((bytes) => PNG.sync.read(bytes));
  if (a.width !== b.width || a.height !== b.height) return { words: `${b.width} x ${b.height} pixels, ${a.width} x ${a.height} accepted`, picture: null };
  const picture = new PNG({ width: a.width, height: a.height });
  const pixels = pixelmatch(a.data, b.data, picture.data, a.width, a.height, { threshold: SAME });
  return pixels <= TOLERANCE * a.width * a.height ? null : { words: `${pixels} pixels differ`, picture: PNG.sync.write(picture) };
}

const closed = temporary();
const secret = ['token', 'create', 'somebody', '--role', 'reader', '--tenant', 'default', '-q', '--data-dir', closed];
output(memctl, secret);
writeFileSync(join(closed, 'memctl.toml'), '[access]\ntokens = "required"\n');
const [of, asking] = [await daemon(memctl, temporary()), await daemon(memctl, closed, ['--config', join(closed, 'memctl.toml')])];
for (const job of ['oom_by_fragmentation', JOB]) output(memctl, ['import', '-q', '--daemon', of.grpc, '--job', job, join(recordings, job)]);

const chromium = await browser();
const troubles = [];
rmSync(differences, { recursive: true, force: true });
mkdirSync(accepted, { recursive: true });
try {
  for (const [view, path, there] of VIEWS) {
    const { http } = view === 'sign-in' ? asking : of;
    for (const light of ['light', 'dark']) {
      const name = `${view}-${light}.png`;
      const { page, context } = await visit(chromium, http, { colorScheme: light });
      const taken = async () => {
        await page.goto(`${http}${path}`);
        await page.locator(there).first().waitFor({ state: 'attached' });
        await page.mouse.move(0, 0);
        await settled(page);
        const shot = await page.screenshot({ fullPage: true, animations: 'disabled', caret: 'hide' });
        return palettePng(reduced(PNG.sync.read(shot)));
      };
      const [first, second] = [await taken(), await taken()];
      await context.close();
      const place = join(accepted, name);
      const twice = differing(first, second);
      if (twice === null && accepts) {
        writeFileSync(place, second);
        continue;
      }
      const found = twice ?? (existsSync(place) ? differing(readFileSync(place), second) : { words: 'none is accepted', picture: null });
      if (found === null) continue;
      troubles.push(`${name}: ${twice === null ? '' : 'taken twice, '}${found.words}`);
      mkdirSync(differences, { recursive: true });
      writeFileSync(join(differences, name), second);
      if (found.picture !== null) writeFileSync(join(differences, name.replace('.png', '-difference.png')), found.picture);
    }
  }
} finally {
  await chromium.close();
}
const known = new Set(VIEWS.flatMap(([view]) => [`${view}-light.png`, `${view}-dark.png`]));
for (const name of readdirSync(accepted)) if (!known.has(name)) troubles.push(`${name}: there is no such view`);
const bytes = readdirSync(accepted).reduce((sum, name) => sum + readFileSync(join(accepted, name)).length, 0);
assert.ok(bytes <= BYTES_MAX, `${bytes} bytes of pictures`);
assert.deepEqual(troubles, [], `pictures are in ${differences}; what is right is accepted by MEMCTL_PICTURES=accept ./test page`);
console.log(`${known.size} pictures ${accepts ? 'accepted' : 'compared'}, ${bytes} bytes`);
assert.equal(await ended(of.child), 0);
assert.equal(await ended(asking.child), 0);
