// What every walk shares: servers, a browser and the checks for every view.
//
// Guarantees: everything is real: the binary that is given, recordings that it imports, Chromium. All processes are ended and
// all files removed, however a walk ends; Node's own exit ends the servers, too. The only fonts are DejaVu, and the page's
// clock is fixed, so that a picture is the same on another day.
// Refuses to let a page complain, or request anything from elsewhere, unnoticed.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
/** Long, because a machine that compiles meanwhile is slow. */
const PATIENCE_MS = 60_000;
/** The time of the page's clock: some days after the bundled recordings. */
export const NOW = new Date('2026-11-24T12:00:00Z');
/** The screens that a view is looked at on. */
export const SCREENS = [[1280, 'light'], [390, 'light'], [1280, 'dark'], [390, 'dark']];

/** A folder that is removed when this process ends. */
export function temporary() {
  const folder = mkdtempSync(join(tmpdir(), 'memctl-walk-'));
  process.on('exit', () => { rmSync(folder, { recursive: true, force: true }); });
  return folder;
}

/** A program that is ended when this process ends. */
function started(program, flags, stdio) {
  const child = spawn(program, flags, { stdio });
  process.on('exit', () => { child.kill('SIGKILL'); });
  return child;
}

/** Ends a program as a person would, and waits for it. */
export async function ended(child) {
  if (child.exitCode !== null) return child.exitCode;
  child.kill('SIGTERM');
  return (await once(child, 'exit'))[0];
}

/** A daemon on a folder: its addresses for programs and for browsers. */
export async function daemon(memctl, folder, flags = []) {
  const all = ['daemon', '--data-dir', folder, '--listen', 'http://127.0.0.1:0', '--http-listen', 'http://127.0.0.1:0', ...flags];
  const child = started(memctl, all, ['ignore', 'pipe', 'ignore']);
  const places = [];
  const lines = createInterface({ input: child.stdout });
  for await (const line of lines) {
    places.push(...(line.match(/http:\/\/127\.0\.0\.1:\d+/g) ?? []));
    if (places.length >= 2) break;
  }
  assert.equal(places.length, 2, 'the daemon says where it listens');
  child.stdout.resume();
  return { child, grpc: places[0], http: places[1] };
}

/** The demo's page: `memctl demo --ui`, and the address that it prints. */
export async function demo(memctl) {
  const child = started(memctl, ['demo', '--ui', '-q'], ['ignore', 'pipe', 'inherit']);
  const [address] = await once(createInterface({ input: child.stdout }), 'line');
  return { child, address, http: new URL(address).origin };
}

/** A program that runs beside the walk, fed by lines. */
export function beside(program, flags) {
  return started(program, flags, ['pipe', 'ignore', 'inherit']);
}

/** A command's output. */
export function output(memctl, flags) {
  return execFileSync(memctl, flags, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], maxBuffer: 1 << 28 });
}

/** A command's output as JSON. */
export function json(memctl, flags) {
  return JSON.parse(output(memctl, [...flags, '-o', 'json']));
}

/** Chromium with DejaVu as its only fonts. */
export async function browser() {
  const folder = temporary();
  const fonts = ['DejaVuSans', 'DejaVuSans-Bold', 'DejaVuSansMono', 'DejaVuSansMono-Bold'];
  mkdirSync(join(folder, 'fonts'));
  for (const font of fonts) symlinkSync(`/usr/share/fonts/truetype/dejavu/${font}.ttf`, join(folder, 'fonts', `${font}.ttf`));
  const alias = (name, font) => `<alias binding="same"><family>${name}</family><prefer><family>${font}</family></prefer></alias>`;
  writeFileSync(join(folder, 'fonts.conf'), `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
    <dir>${folder}/fonts</dir><cachedir>${folder}/cache</cachedir>
    ${alias('sans-serif', 'DejaVu Sans')}${alias('system-ui', 'DejaVu Sans')}${alias('monospace', 'DejaVu Sans Mono')}${alias('ui-monospace', 'DejaVu Sans Mono')}
    <match target="font"><edit name="antialias" mode="assign"><bool>true</bool></edit><edit name="hinting" mode="assign"><bool>false</bool></edit>
    <edit name="rgba" mode="assign"><const>none</const></edit></match></fontconfig>`);
  mkdirSync(join(folder, 'cache'));
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-lcd-text', '--font-render-hinting=none', '--force-color-profile=srgb', '--hide-scrollbars'],
    env: { ...process.env, FONTCONFIG_FILE: join(folder, 'fonts.conf') },
    // As in an ordinary browser, which refuses hundreds of changes of the address within seconds, and warns.
    ignoreDefaultArgs: ['--disable-ipc-flooding-protection'],
  });
}

/** Each page's requests without a response. */
const under_way = new WeakMap();

/** A page with its own cookies, and its complaints: it may request nothing but from `http`. */
export async function visit(of, http, options = {}) {
  const context = await of.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: 'reduce', colorScheme: 'light', timezoneId: 'UTC', locale: 'en-GB', ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  await context.clock.setFixedTime(NOW);
  const page = await context.newPage();
  const complaints = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('request', (request) => {
    if (!request.url().startsWith(`${http}/`)) complaints.push(`requested ${request.url()}`);
  });
  // (`/live` is one connection that stays open for updates.)
  const unanswered = new Set();
  page.on('request', (request) => { if (request.method() === 'GET' && !request.url().endsWith('/live')) unanswered.add(request); });
  for (const event of ['requestfinished', 'requestfailed']) page.on(event, (request) => { unanswered.delete(request); });
  under_way.set(page, unanswered);
  return { context, page, complaints };
}

/** Waits until nothing is under way: no open request, no part still loading, everything painted. */
export async function settled(page) {
  // (Polled from outside: the page's content policy forbids repeated evaluation inside.)
  const begun = performance.now();
  for (let quiet = 0; quiet < 3; ) {
    assert.ok(performance.now() - begun < PATIENCE_MS, `a part of ${page.url()} is still loading`);
    await page.evaluate('document.fonts.ready.then(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true)))))');
    const loads = await page.evaluate("/Loading .*…/.test(document.querySelector('main')?.innerText ?? 'Loading …')");
    quiet = loads || (under_way.get(page)?.size ?? 0) > 0 ? 0 : quiet + 1;
  }
}

/** No finding of axe, and nothing wider than the screen. */
export async function sound(page, where) {
  // The policy of the page keeps out everything but its own script: axe comes in through the debugger.
  const findings = await page.evaluate(`${axe}; axe.run().then((result) => result.violations.map((one) =>
    one.id + ': ' + one.nodes.map((node) => node.target.join(' ') + ' ' + (node.any[0]?.message ?? '')).slice(0, 3).join('; ')))`);
  assert.deepEqual(findings, [], `axe on ${where}`);
  const tooWide = await page.evaluate('document.documentElement.scrollWidth - document.documentElement.clientWidth');
  assert.ok(tooWide <= 0, `${where} is ${tooWide} pixels wider than the screen`);
}

/** A view on every screen, in both lights; it is left on the widest, in light. */
export async function onEveryScreen(page, name, look = (where) => sound(page, where)) {
  for (const [width, light] of SCREENS) {
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme: light });
    await settled(page);
    await look(`${name}-${width}-${light}`);
  }
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.emulateMedia({ colorScheme: 'light' });
}

/** What Tab can reach in the order of the document; what is hidden or folded away is not there. */
const REACHABLE = `[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex], [role=treeitem]')].filter((one) =>
  one.tabIndex >= 0 && !one.disabled && one.checkVisibility({ visibilityProperty: true }) &&
  !(one.closest('details:not([open])') && one !== one.closest('details:not([open])').querySelector(':scope > summary')))`;

/** Presses Tab through the whole of a view: everything that can be used is reached, in the order of the document, and seen. */
export async function tabbed(page, where) {
  const names = await page.evaluate(`globalThis.walk_reach = ${REACHABLE}; walk_reach.map((one) =>
    one.tagName.toLowerCase() + ' ' + (one.getAttribute('aria-label') ?? one.innerText ?? '').slice(0, 60).replaceAll('\\n', ' '))`);
  assert.ok(names.length > 2, `${where} has something to use`);
  await page.evaluate('walk_reach[0].focus({ preventScroll: true })');
  for (const [at, name] of names.entries()) {
    if (at > 0) await page.keyboard.press('Tab');
    const [reached, seen] = await page.evaluate(`(() => { const one = document.activeElement; const style = getComputedStyle(one);
      const drawn = one.tagName === 'g' && getComputedStyle(one.querySelector('rect')).strokeWidth === '2px';
      return [walk_reach.indexOf(one), style.outlineStyle !== 'none' || drawn]; })()`);
    assert.equal(names[reached], name, `${where}: the ${at + 1}th Tab`);
    assert.equal(reached, at, `${where}: Tab goes in the order of the document, at ${name}`);
    if (at > 0) assert.ok(seen, `${where}: the focus is seen on ${name}`);
  }
  return names;
}

/** Presses Tab until a control has the focus; it has to be reachable so. */
export async function tabTo(page, target, most = 150) {
  await target.waitFor();
  for (let pressed = 0; pressed < most; pressed += 1) {
    if (await target.evaluate((one) => one === one.ownerDocument.activeElement)) return;
    await page.keyboard.press('Tab');
  }
  assert.fail(`${most} Tabs do not reach ${target}`);
}

/** Runs walks, and ends what they started even if one fails. */
export async function walked(of, steps) {
  try {
    for (const [name, step] of steps) {
      const begun = performance.now();
      try {
        await step();
      } catch (error) {
        for (const page of of.contexts().flatMap((context) => context.pages())) {
          const text = await page.evaluate("document.body.innerText.slice(0, 1500) + '\\nfocus: ' + document.activeElement.outerHTML.slice(0, 200)").catch(String);
          console.error(`${page.url()}\n${text}`);
        }
        throw new Error(`${name}: ${error.message}`, { cause: error });
      }
      console.log(`${name} (${((performance.now() - begun) / 1000).toFixed(1)} s)`);
    }
  } finally {
    await of.close();
  }
}
