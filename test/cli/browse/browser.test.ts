/**
 * `SCREENSHOTS=docs npx vitest run test/cli/browse/browser.test.ts` takes the screenshots of the
 * documentation again.
 */
import * as fs from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { BACKUPS } from '../../../src/kube/index.ts';
import { imageOf } from '../../device-files/image.ts';
import { FakeApi } from '../../server/page/support/fake-api.ts';
import { openPage, PATIENT } from '../../server/page/support/page.ts';
import { BrowserPage, hasBrowser } from '../../support/browser.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';
import { putDirectoryLocation } from './support/directory-location.ts';

const SCREENSHOTS = process.env['SCREENSHOTS'];
const EVIL = '"><img src=x onerror=document.title="hacked">.html';
const TURNED = '\u202egnp.exe';
const LONG = 'a-name-without-any-place-to-break-it-'.repeat(6);
const PHONE = { width: 360, height: 740, deviceScaleFactor: 2, mobile: true };
const DESKTOP = { width: 1100, height: 760, deviceScaleFactor: 1, mobile: false };

describe.skipIf(!hasBrowser)('files of backups in a real browser', { timeout: 120_000 }, () => {
  const work = tempDirectory('browser');
  const api = new FakeApi();
  let server: Awaited<ReturnType<typeof openPage>>;
  let browser: BrowserPage;
  let base: string;
  beforeAll(async () => {
    const source = join(work, 'volume');
    fs.mkdirSync(join(source, 'uploads'), { recursive: true });
    for (const name of ['config', 'data', 'logs']) fs.mkdirSync(join(source, name));
    fs.writeFileSync(join(source, 'config/app.yaml'), 'replicas: 3\n', { mode: 0o640 });
    fs.writeFileSync(join(source, 'data/orders.db'), Buffer.alloc(3_000_000, 'x'));
    fs.writeFileSync(join(source, 'logs/app.log'), 'started\n'.repeat(900));
    fs.writeFileSync(join(source, 'README'), 'What is here\n');
    fs.symlinkSync('config/app.yaml', join(source, 'app.yaml'));
    for (const name of [EVIL, TURNED, LONG, 'two\nlines']) {
      fs.writeFileSync(join(source, 'uploads', name), 'evil');
    }
    for (const path of fs.readdirSync(source, { recursive: true }) as string[]) {
      fs.lutimesSync(join(source, path), 1_795_600_000, 1_795_600_000);
    }
    fs.writeFileSync(join(work, 'disk'), imageOf('journal-1'));
    const store = join(work, 'store');
    await createTest(join(store, 'kopia/shop'));
    await using opened = await openTest(join(store, 'kopia/shop'));
    const files = await backUp(opened, source);
    const disk = await backUp(opened, join(work, 'disk'), { block: true });
    await opened.flush();
    putDirectoryLocation(api, store, PASSWORD);
    const metadata = { name: 'nightly', uid: 'uid-nightly', namespace: 'velero' };
    const status = { phase: 'Completed', startTimestamp: '2026-11-26T09:50:00Z' };
    const backup = { metadata, spec: { storageLocation: 'default' }, status };
    api.put(BACKUPS, backup);
    const folder = join(store, 'backups/nightly');
    fs.mkdirSync(folder, { recursive: true });
    const kind = { apiVersion: 'velero.io/v1', kind: 'Backup' };
    fs.writeFileSync(join(folder, 'velero-backup.json'), JSON.stringify({ ...kind, ...backup }));
    const infos = Object.entries({ data: files.id, disk: disk.id }).map(([pvcName, id]) => ({
      pvcName,
      pvcNamespace: 'shop',
      backupMethod: 'CSISnapshot',
      snapshotDataMoved: true,
      snapshotDataMovementInfo: { uploaderType: 'kopia', snapshotHandle: id, size: 3_007_200 },
    }));
    fs.writeFileSync(join(folder, 'nightly-volumeinfo.json.gz'), gzipSync(JSON.stringify(infos)));
    api.tokens.set('good', { user: { username: 'ann' }, mayList: true, mayBrowse: ['nightly'] });
    server = await openPage(api, { hasFiles: true });
    await vi.waitUntil(async () => (await server.ask('/')).status === 200, PATIENT);
    base = `http://127.0.0.1:${/\d+$/.exec(server.address)?.[0] ?? ''}`;
    browser = await BrowserPage.open();
    await browser.send('Emulation.setDeviceMetricsOverride', DESKTOP);
  }, 120_000);
  afterAll(async () => {
    await browser[Symbol.asyncDispose]();
    await server[Symbol.asyncDispose]();
    fs.rmSync(work, { recursive: true, force: true });
  });

  const placeOf = (path: string, volume = 'shop/data'): string =>
    `${base}/backups/nightly/files?${new URLSearchParams({ volume, path }).toString()}`;
  const heading = () => browser.evaluate(`document.querySelector('h1')?.textContent`);
  const enter = () => browser.after('Page.loadEventFired', () => browser.press('Enter'));
  async function shoot(name: string): Promise<void> {
    if (SCREENSHOTS !== undefined) await browser.screenshot(join(SCREENSHOTS, name));
  }

  it('whoever has only a keyboard logs in, goes down to a file and downloads it', async () => {
    await browser.goTo(`${base}/backups/nightly/files`);
    expect(await heading()).toBe('Log in');
    await browser.tabTo('');
    await browser.send('Input.insertText', { text: 'good' });
    await enter();
    expect(await heading()).toBe('Volumes of nightly');
    await browser.tabTo('shop/data');
    await enter();
    await shoot('status-page-files.png');
    await browser.tabTo('config/');
    await enter();
    await browser.tabTo('app.yaml');
    await enter();
    expect(await heading()).toBe('app.yaml');
    await browser.tabTo('Download');
    const downloadPath = join(work, 'downloads');
    await browser.send('Browser.setDownloadBehavior', {
      behavior: 'allow',
      downloadPath,
      eventsEnabled: true,
    });
    await browser.after('Browser.downloadWillBegin', () => browser.press('Enter'));
    const saved = join(downloadPath, 'app.yaml');
    await expect.poll(() => fs.existsSync(saved), PATIENT).toBe(true);
    expect(fs.readFileSync(saved, 'utf8')).toBe('replicas: 3\n');
  });

  it('asks nobody but its server for anything', () => {
    expect(
      browser.asked.filter((url) => !url.startsWith(`${base}/`) && url !== 'about:blank'),
    ).toEqual([]);
  });

  it('names that somebody chose are text', async () => {
    await browser.goTo(placeOf('/uploads'));
    const title = await browser.evaluate('document.title');
    const seen = String(await browser.evaluate('document.body.innerText'));
    expect([title, await browser.evaluate('document.images.length')]).toEqual(['uploads', 0]);
    expect(seen).toContain(EVIL);
    expect(seen).not.toContain('\u202e');
    expect(seen).not.toContain('two\nlines');
  });

  it.each([
    ['a directory', '/', 'shop/data'],
    ['names without a place to break', '/uploads', 'shop/data'],
    ['a raw volume', '/', 'shop/disk'],
    ['a file', `/uploads/${LONG}`, 'shop/data'],
  ])('%s is as wide as a phone, in light and dark', async (_, path, volume) => {
    await browser.send('Emulation.setDeviceMetricsOverride', PHONE);
    const colours: unknown[] = [];
    for (const value of ['light', 'dark']) {
      const features = [{ name: 'prefers-color-scheme', value }];
      await browser.send('Emulation.setEmulatedMedia', { features });
      await browser.goTo(placeOf(path, volume));
      const widths = '[document.documentElement.scrollWidth, window.innerWidth]';
      expect(await browser.evaluate(widths)).toEqual([360, 360]);
      colours.push(await browser.evaluate('getComputedStyle(document.body).backgroundColor'));
      if (value === 'dark' && volume === 'shop/disk') await shoot('status-page-files-phone.png');
    }
    expect(new Set(colours).size).toBe(2);
    await browser.send('Emulation.setDeviceMetricsOverride', DESKTOP);
    await browser.send('Emulation.setEmulatedMedia', { features: [] });
  });

  it('works without JavaScript', async () => {
    await browser.send('Emulation.setScriptExecutionDisabled', { value: true });
    await browser.goTo(placeOf('/config'));
    const { root } = await browser.send('DOM.getDocument', { depth: -1 });
    expect(JSON.stringify(root)).toContain('app.yaml');
    await browser.send('Emulation.setScriptExecutionDisabled', { value: false });
  });
});
