import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { silentLogger } from '../../../src/base/index.ts';
import { ClusterBackupFiles } from '../../../src/cli/browse/backup-files.ts';
import { deriveKeyOf, OpenRepositories } from '../../../src/cli/browse/open-repositories.ts';
import type { Repository } from '../../../src/repository/index.ts';
import { fileBytes } from '../../../src/cli/browse/file-bytes.ts';
import { resolveEntry } from '../../../src/snapshot/index.ts';
import { BACKUPS } from '../../../src/kube/index.ts';
import { FakeApi, NAMESPACE } from '../../server/page/support/fake-api.ts';
import { openPage, PATIENT, textOf } from '../../server/page/support/page.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';
import { putDirectoryLocation } from './support/directory-location.ts';
import { withCalls } from '../../support/with-calls.ts';

const work = tempDirectory('page-files');
const store = join(work, 'store');
const source = join(work, 'volume');
const LONG = `${'ä'.repeat(125)}.txt`;
const EVIL = '"><script>alert(1)<\\script>.html';
const TURNED = '\u202egnp.exe';
const BROKEN = Buffer.from([0x61, 0xff, 0xfe]);
const NUMBERED = 450;
const KIND = { apiVersion: 'velero.io/v1', kind: 'Backup' };
const bearer = { authorization: 'Bearer good' };

/** Directories never come. */
function hanging(repository: Repository): Repository {
  const getContent = (_id: unknown, { signal }: { signal?: AbortSignal } = {}) =>
    new Promise((_, reject) => {
      signal?.addEventListener('abort', () => {
        reject(signal.reason as Error);
      });
    });
  return withCalls(repository, { contents: withCalls(repository.contents, { getContent }) });
}

describe('files of backups on the status page', () => {
  const api = new FakeApi();
  let page: Awaited<ReturnType<typeof openPage>>;
  let snapshotId: string;
  beforeAll(async () => {
    fs.mkdirSync(join(source, 'etc/many'), { recursive: true });
    fs.writeFileSync(join(source, 'etc/hosts'), '127.0.0.1 localhost\n', { mode: 0o640 });
    for (const name of [LONG, EVIL, TURNED, 'line\r\nSet-Cookie: a=b']) {
      fs.writeFileSync(join(source, 'etc', name), name);
    }
    fs.writeFileSync(Buffer.concat([Buffer.from(join(source, 'etc/')), BROKEN]), 'broken');
    fs.symlinkSync('../<b>else', join(source, 'etc/link'));
    execFileSync('mkfifo', [join(source, 'etc/pipe')]);
    fs.writeFileSync(join(source, 'large'), Buffer.alloc(9_000_000, 'x'));
    for (let at = 0; at < NUMBERED; at++) {
      fs.writeFileSync(join(source, `etc/many/${String(at).padStart(4, '0')}`), 'y'.repeat(at));
    }
    const repository = join(store, 'kopia/shop');
    await createTest(repository);
    await using opened = await openTest(repository);
    const { id } = await backUp(opened, source);
    snapshotId = id;
    await opened.flush();
    putDirectoryLocation(api, store, PASSWORD);
    const status = { phase: 'Completed', startTimestamp: '2026-11-26T09:50:00Z' };
    for (const name of ['nightly', 'other', 'gone', 'taken']) {
      const metadata = { name, uid: `uid-${name}`, namespace: 'velero' };
      api.put(BACKUPS, { metadata, spec: { storageLocation: 'default' }, status });
      if (name === 'gone') continue;
      // This name's files were stored by another Backup.
      const isTaken = name === 'taken';
      const stored = isTaken
        ? { metadata: { name }, status: { phase: 'Completed' } }
        : { metadata, status };
      putFile(name, 'velero-backup.json', JSON.stringify({ ...KIND, ...stored, spec: {} }));
      const moved = { uploaderType: 'kopia', snapshotHandle: id, size: 9 };
      const info = { pvcNamespace: 'shop', backupMethod: 'CSISnapshot' };
      const infos = [
        { ...info, pvcName: 'data', snapshotDataMoved: true, snapshotDataMovementInfo: moved },
        {
          ...info,
          pvcName: 'late',
          snapshotDataMoved: true,
          snapshotDataMovementInfo: { ...moved, snapshotHandle: 'f'.repeat(32) },
        },
        { ...info, pvcName: 'kept', csiSnapshotInfo: { size: 7 } },
      ];
      putFile(name, `${name}-volumeinfo.json.gz`, gzipSync(JSON.stringify(infos)));
    }
    const mayList = true;
    api.tokens.set('good', {
      user: { username: 'ann' },
      mayList,
      mayBrowse: ['nightly', 'gone', 'taken'],
    });
    api.tokens.set('looks', { user: { username: 'bob' }, mayList });
    api.tokens.set('only', { user: { username: 'eve' }, mayList: false, mayBrowse: ['nightly'] });
    page = await openPage(api, { needsLogin: true, hasFiles: true });
    await vi.waitUntil(
      async () => (await page.ask('/', { headers: bearer })).status === 200,
      PATIENT,
    );
  });
  afterAll(async () => {
    await page[Symbol.asyncDispose]();
    fs.rmSync(work, { recursive: true, force: true });
  });

  function putFile(backup: string, file: string, bytes: string | Buffer): void {
    fs.mkdirSync(join(store, 'backups', backup), { recursive: true });
    fs.writeFileSync(join(store, 'backups', backup, file), bytes);
  }
  function pathOf(verb: string, place: Record<string, string> = {}, backup = 'nightly'): string {
    const query = new URLSearchParams(place).toString();
    return `/backups/${backup}/${verb}${query === '' ? '' : `?${query}`}`;
  }
  const logIn = (
    where: Pick<Awaited<ReturnType<typeof openPage>>, 'ask'>,
    form: Record<string, string>,
  ) =>
    where.ask('/login', {
      method: 'POST',
      headers: {
        'content-type': 'application/x-www-form-urlencoded',
        'sec-fetch-site': 'same-origin',
      },
      body: new URLSearchParams(form).toString(),
    });
  const look = (path: string, more: Record<string, string> = {}) =>
    page.ask(pathOf('files', { volume: 'shop/data', path, ...more }), { headers: bearer });
  const download = (path: string, more: Record<string, string> = {}) =>
    page.ask(pathOf('download', { volume: 'shop/data', path, ...more }), { headers: bearer });
  /** Where the links of a page lead that have such a text. */
  const linksTo = (body: string, text: string): string[] =>
    [...body.matchAll(/<a\s+href="([^"]*)"[^>]*>(.*?)<\/a\s*>/gs)]
      .filter(([, , inner = '']) => textOf(inner).trim() === text)
      .map(([, href = '']) => href.replaceAll('&amp;', '&'));

  it('the key of a repository is derived before it is opened, where it is there', async () => {
    const session = { client: api.client, namespace: NAMESPACE };
    const { signal } = new AbortController();
    const key = (volumeNamespace: string) =>
      deriveKeyOf({ storageLocation: 'default', volumeNamespace }, { ...session, signal });
    fs.mkdirSync(join(store, 'kopia/empty'));
    await expect(key('shop')).resolves.toBeUndefined();
    await expect(key('empty')).rejects.toMatchObject({ code: 'NOT_A_REPOSITORY' });
  });

  it('a visitor who goes while the bucket hangs gives the place back, and the repository stays open for others', async () => {
    let openings = 0;
    const options = { client: api.client, namespace: NAMESPACE, logger: silentLogger };
    const repositories = new OpenRepositories({
      ...options,
      withRepository: async (_place, _session, work) => {
        openings++;
        await using opened = await openTest(join(store, 'kopia/shop'));
        await work(hanging(opened));
      },
    });
    await using files = new ClusterBackupFiles({ ...options, repositories });
    const backup = { name: 'nightly', uid: 'uid-nightly', location: 'default' };
    for (const more of [{ path: ['etc', 'hosts'] }, { path: ['etc'], objectId: 'kffff' }]) {
      const gone = new AbortController();
      const opening = files.open(backup, { volume: 'shop/data', ...more }, gone.signal);
      setTimeout(() => {
        gone.abort(new Error('gone'));
      }, 300);
      const late = sleep(3000, 'still waiting');
      await expect(Promise.race([opening, late])).rejects.toThrow('gone');
    }
    expect(openings).toBe(1);
  });

  it('shows nothing of a backup whose name another one has in the bucket', async () => {
    const { body } = await page.ask(pathOf('files', {}, 'taken'), { headers: bearer });
    expect(textOf(body)).toContain('belong to another Backup of this name');
    expect(textOf(body)).not.toContain('shop/data');
  });

  it('leads from a backup to its volumes, directories and files', async () => {
    const own = await page.ask('/backups/nightly', { headers: bearer });
    const [volumes = ''] = linksTo(own.body, 'Files of its volumes');
    const listed = await page.ask(volumes, { headers: bearer });
    expect(textOf(listed.body)).toMatch(
      /shop\/data data movement 9 B can be browsed.*shop\/kept CSI snapshot 7 B its snapshot stays/,
    );
    const [volume = ''] = linksTo(listed.body, 'shop/data');
    const root = await page.ask(volume, { headers: bearer });
    expect(textOf(root.body)).toMatch(/etc \/ directory .* large \( download\) file rw-/);
    const [etc = ''] = linksTo(root.body, 'etc /');
    const inEtc = await page.ask(etc, { headers: bearer });
    const [hosts = ''] = linksTo(inEtc.body, 'hosts');
    const file = await page.ask(hosts, { headers: bearer });
    expect(textOf(file.body)).toMatch(/Kind file Size 20 B \(20 bytes\) .* Mode rw-r-----/);
    const [bytes = ''] = linksTo(file.body, 'Download');
    const { headers, body } = await page.ask(bytes, { headers: bearer });
    expect(body).toBe('127.0.0.1 localhost\n');
    expect(headers).toMatchObject({
      'content-type': 'application/octet-stream',
      'content-disposition': 'attachment; filename="hosts"',
      'content-length': '20',
      'x-content-type-options': 'nosniff',
      'content-security-policy': "default-src 'none'; sandbox",
      'cache-control': 'no-store',
    });
  });

  it('a directory is downloaded as an archive that tar unpacks', async () => {
    const { bytes, headers } = await download('/etc', { as: 'tar' });
    expect(headers['content-disposition']).toBe('attachment; filename="etc.tar"');
    const target = join(work, 'unpacked');
    fs.mkdirSync(target);
    execFileSync('tar', ['-x', '-C', target], { input: bytes });
    expect(fs.readFileSync(join(target, 'hosts'), 'utf8')).toBe('127.0.0.1 localhost\n');
    expect(fs.readdirSync(join(target, 'many')).length).toBe(NUMBERED);
    expect(fs.existsSync(join(target, 'pipe'))).toBe(false);
    const whole = await download('/', { as: 'tar' });
    expect(whole.headers['content-disposition']).toBe('attachment; filename="shop_data.tar"');
    const large = await download('/large');
    expect(large.bytes.equals(Buffer.alloc(9_000_000, 'x'))).toBe(true);
    const url = pathOf('download', { volume: 'shop/data', path: '/large' });
    const head = await page.ask(url, { method: 'HEAD', headers: bearer });
    expect([head.status, head.headers['content-length'], head.body]).toEqual([200, '9000000', '']);
  });

  it('names that somebody chose are only names, on pages and of downloads', async () => {
    const { body } = await look('/etc');
    expect(body).not.toMatch(/<script>alert|\u202e|Set-Cookie: a=b\n/);
    const disposition = async (name: string): Promise<string> => {
      const [href = ''] = [...body.matchAll(/href="([^"]*\/download[^"]*)"/g)]
        .map(([, each = '']) => each.replaceAll('&amp;', '&'))
        .filter((each) =>
          (new URL(each, 'http://x').searchParams.get('path') ?? '').includes(name),
        );
      const { headers, body: bytes, status } = await page.ask(href, { headers: bearer });
      expect([status, headers['set-cookie']]).toEqual([200, undefined]);
      expect(bytes).toBe(name === 'a\ufffd' ? 'broken' : name);
      return headers['content-disposition'] ?? '';
    };
    expect(await disposition(EVIL)).toBe(
      'attachment; filename="___script_alert_1___script_.html"; filename*=UTF-8\'\'___script_alert%281%29__script_.html',
    );
    expect(await disposition(TURNED)).toBe('attachment; filename="_gnp.exe"');
    expect(await disposition('line\r\nSet-Cookie: a=b')).toBe(
      'attachment; filename="line__Set-Cookie_ a_b"; filename*=UTF-8\'\'line__Set-Cookie_%20a%3Db',
    );
    expect(await disposition('a\ufffd')).toContain("filename*=UTF-8''a%EF%BF%BD");
    const long = await disposition(LONG);
    expect(decodeURIComponent(long.split("''")[1] ?? '')).toBe('ä'.repeat(100));
    const link = await look('/etc/link');
    expect(textOf(link.body)).toContain('Leads to../<b>else');
    expect(link.body).not.toContain('<b>else');
  });

  it('a long directory has pages, and is sorted by size and time', async () => {
    const first = await look('/etc/many', { order: 'size', down: '1' });
    expect(textOf(first.body)).toMatch(/450 entries; page 1\..* 0449 \( download\)/);
    const [next = ''] = linksTo(first.body, 'Next');
    const last = await page.ask(next.replace('page=2', 'page=99'), { headers: bearer });
    expect(textOf(last.body)).toMatch(/page 3\..* 0049 .* 0000 \(/);
    expect(linksTo(last.body, 'Next')).toEqual([]);
  });

  it.each([
    ['no token', {}, 401],
    ['somebody who may only see the page', { authorization: 'Bearer looks' }, 403],
    ['somebody who may not see the page', { authorization: 'Bearer only' }, 403],
  ])('shows nothing to %s', async (_, headers, status) => {
    for (const verb of ['files', 'download']) {
      const path = pathOf(verb, { volume: 'shop/data', path: '/etc/hosts' });
      const answer = await page.ask(path, { headers });
      expect(answer.status).toBe(status);
      // The form has the requested address, and no data of the cluster.
      const told = answer.body.replace(/name="next" value="[^"]*"/, '');
      expect(told).not.toMatch(/hosts|localhost|shop/);
    }
  });

  it('the right is one to a single backup', async () => {
    const place = { volume: 'shop/data', path: '/etc/hosts' };
    const other = await page.ask(pathOf('download', place, 'other'), { headers: bearer });
    expect(other.status).toBe(403);
    expect(textOf(other.body)).toContain('the verb "browse" on its object');
  });

  it.each<[string, Record<string, string>, number, string]>([
    ['a volume that is not there', { volume: 'shop/none' }, 404, 'has no volume "shop/none"'],
    ['a volume without files', { volume: 'shop/kept' }, 409, 'its snapshot stays in the storage'],
    ['a snapshot that is gone', { volume: 'shop/late' }, 404, 'there is neither a snapshot nor'],
    [
      'a path that is not there',
      { volume: 'shop/data', path: '/a/b' },
      404,
      'there is no /a in volume shop/data',
    ],
    [
      'a path out of the volume',
      { volume: 'shop/data', path: '/../../x' },
      404,
      'there is no /.. in volume',
    ],
    ['a path without end', { volume: 'shop/data', path: 'x/'.repeat(5000) }, 400, 'too long'],
  ])('%s is told in a sentence', async (_, place, status, text) => {
    const answer = await page.ask(pathOf('files', place), { headers: bearer });
    expect([answer.status, textOf(answer.body)]).toEqual([status, expect.stringContaining(text)]);
  });

  it('what has no bytes is not downloaded, and a backup without files in the bucket is told of', async () => {
    expect((await download('/etc')).status).toBe(404);
    expect((await download('/etc/link')).status).toBe(404);
    expect((await page.ask(pathOf('download'), { headers: bearer })).status).toBe(404);
    const gone = await page.ask(pathOf('files', {}, 'gone'), { headers: bearer });
    expect([gone.status, textOf(gone.body)]).toEqual([
      502,
      expect.stringContaining('This cannot be read:'),
    ]);
  });

  it('on an address of this machine everybody sees the page, and only who logs in sees files', async () => {
    await using own = await openPage(api, { hasFiles: true });
    await expect.poll(async () => (await own.ask('/')).status, PATIENT).toBe(200);
    const path = pathOf('download', { volume: 'shop/data', path: '/etc/hosts' });
    expect((await own.ask(path)).status).toBe(401);
    const login = await logIn(own, { token: 'good' });
    expect(login.headers.location).toBe('/');
    const cookie = (login.headers['set-cookie']?.[0] ?? '').split(';')[0] ?? '';
    expect((await own.ask(path, { headers: { cookie } })).body).toBe('127.0.0.1 localhost\n');
    expect((await own.ask(path, { headers: { cookie, host: 'evil.example' } })).status).toBe(403);
  });

  it('a login leads to the files that were asked for, and never to another server', async () => {
    const path = pathOf('files', { volume: 'shop/data', path: '/etc "x"' });
    const { status, body } = await page.ask(path);
    const [, next = ''] = /name="next" value="([^"]*)"/.exec(body) ?? [];
    expect([status, next.replaceAll('&amp;', '&')]).toEqual([401, path]);
    expect((await logIn(page, { token: 'good', next: path })).headers.location).toBe(path);
    for (const evil of [
      ...['//evil.example/backups/x/files', '/\\evil.example', 'https://evil.example', '/logout'],
      ...['/backups/x/files\r\nset-cookie: a=b', '/backups/x/../files', '/backups/x/download?a=b'],
      `/backups/x/files?${'a'.repeat(3000)}`,
    ]) {
      const { headers } = await logIn(page, { token: 'good', next: evil });
      expect([evil, headers.location]).toEqual([evil, '/']);
    }
    expect((await page.ask('/')).body).not.toContain('name="next"');
  });

  it('a file is as long as its entry says, or cut off: what follows would be taken for another answer', async () => {
    await using opened = await openTest(join(store, 'kopia/shop'));
    const root = await resolveEntry(opened, `${snapshotId}/etc/hosts`);
    const { signal } = new AbortController();
    const lengthOf = async (size: number): Promise<number> => {
      let length = 0;
      const bytes = fileBytes(opened, { ...root, size }, { name: 'hosts', signal });
      for await (const piece of bytes) length += piece.length;
      return length;
    };
    expect(await lengthOf(20)).toBe(20);
    for (const size of [19, 21]) {
      await expect(lengthOf(size)).rejects.toMatchObject({ code: 'DAMAGED_SNAPSHOT' });
    }
  });

  it('where nobody asked for files there are none', async () => {
    await using own = await openPage(api, { needsLogin: true });
    await expect
      .poll(async () => (await own.ask('/', { headers: bearer })).status, PATIENT)
      .toBe(200);
    expect((await own.ask('/backups/nightly', { headers: bearer })).body).not.toContain('/files');
    expect((await own.ask(pathOf('files'), { headers: bearer })).status).toBe(404);
  });
});
