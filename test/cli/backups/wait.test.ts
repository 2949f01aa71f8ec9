import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { averageRate, type MovementDescription } from '../../../src/agent/index.ts';
import { BACKUP, RESTORE } from '../../../src/cli/backups/noun.ts';
import { waitForEnd } from '../../../src/cli/backups/wait.ts';
import {
  LiveWait,
  PlainWait,
  type WaitScreen,
  type WaitView,
} from '../../../src/cli/backups/wait-screen.ts';
import { CanceledError } from '../../../src/base/index.ts';
import {
  BACKUPS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type KubeObject,
  POD_VOLUME_BACKUPS,
  RESTORES,
} from '../../../src/kube/index.ts';
import { Api } from './support/api.ts';
import { newMovement } from '../support/movements.ts';
import { withCalls } from '../../support/with-calls.ts';

const GIB = 2 ** 30;
const moving = (name: string, gib: number): MovementDescription =>
  newMovement(name, {
    phase: 'InProgress',
    movingSeconds: 10,
    bytesDone: gib * GIB,
    totalBytes: 4 * GIB,
    waitsFor: 'its data: …',
  });
const done = (name: string): MovementDescription =>
  newMovement(name, {
    phase: 'Completed',
    bytesDone: GIB,
    totalBytes: GIB,
    isOver: true,
    waitsFor: '',
  });
const failed = (name: string, why: string): MovementDescription =>
  newMovement(name, { phase: 'Failed', isOver: true, waitsFor: why });
const view = (more: Partial<WaitView>): WaitView => ({
  title: 'backup nightly',
  phase: 'InProgress',
  items: { done: 0, total: 0 },
  volumes: undefined,
  rateOf: averageRate,
  note: undefined,
  ...more,
});

describe('on a terminal', () => {
  function shown(size: { rows?: number; columns?: number } = {}) {
    const texts: string[] = [];
    const write = (text: string): Promise<void> => {
      texts.push(text);
      return Promise.resolve();
    };
    const screen = new LiveWait({ rows: 24, columns: 100, ...size, write });
    return { screen, texts };
  }

  it('items are one bar', async () => {
    const { screen, texts } = shown();
    await screen.show(view({ items: { done: 75, total: 300 } }));
    expect(texts[0]).toMatch(/^backup nightly: +25% \[#+-+\] InProgress, 75 of 300 items\n$/);
  });

  it('items that are done are no bar while nobody knows how much there is to move', async () => {
    const { screen, texts } = shown();
    const volumes = [{ ...moving('a', 0), totalBytes: 0 }];
    await screen.show(view({ items: { done: 3, total: 3 }, volumes }));
    expect(texts[0]).not.toContain('100%');
    expect(texts[0]).toMatch(/^backup nightly: InProgress, .*3 items\n/);
  });

  it('each volume is a bar with bytes, rate and time left; the block is drawn in its own place', async () => {
    const { screen, texts } = shown();
    const items = { done: 300, total: 300 };
    const volumes = [done('c'), newMovement('b'), moving('a', 1), failed('d', 'no space left')];
    await screen.show(view({ items, volumes }));
    expect(texts[0]?.split('\n')).toEqual([
      expect.stringMatching(/^backup nightly: InProgress, 2.0 of 5.0 GiB\+.*300 items, 1 error$/),
      '  app/a  [###---------]  25% 1.0 GiB of 4.0 GiB, 102.4 MiB/s, ETA 0:30',
      '  app/b  New: waits for a node-agent to accept it',
      '  app/d  Failed: no space left',
      '  app/c  done, 1.0 GiB',
      '',
    ]);
    await screen.show(view({ items, volumes: [moving('a', 2)] }));
    expect(texts[1]).toMatch(/^\u001b\[5A\u001b\[Jbackup nightly: +50% \[/);
    await screen.show(view({ items, volumes: [moving('a', 2)] }));
  });

  it('it is never larger than the screen, and says what it leaves out', async () => {
    const { screen, texts } = shown({ rows: 10, columns: 50 });
    const volumes = [
      ...Array.from({ length: 3000 }, (_, i) => done(`done-${i}`)),
      ...Array.from({ length: 3000 }, (_, i) => moving(`a-volume-with-a-long-name-${i}`, 1)),
    ];
    await screen.show(view({ volumes, note: 'n'.repeat(200) }));
    const lines = (texts[0] ?? '').trimEnd().split('\n');
    expect(lines.length).toBeLessThan(10);
    for (const line of lines) expect(line.length).toBeLessThan(50);
    expect(lines.at(-2)).toBe('  ... and 5,995 volumes more, 3,000 of them ended');
  });

  it('nothing that others wrote steers it', async () => {
    const { screen, texts } = shown();
    await screen.show(view({ volumes: [failed('x\u202ey', '\u001b[2Jz\nq')] }));
    expect(texts[0]).not.toMatch(/\u001b|\u202e/);
    expect(texts[0]?.trimEnd().split('\n')).toHaveLength(2);
  });
});

describe('on a pipe', () => {
  it('phases, ends of volumes and notes are lines, once each; how far it is comes now and then', async () => {
    const lines: string[] = [];
    const screen = new PlainWait((line) => {
      lines.push(line);
      return Promise.resolve();
    });
    const note = 'it is number 2 in the queue';
    await screen.show(view({ phase: 'Queued', note }));
    await screen.show(view({ phase: 'Queued', note }));
    await screen.show(view({ items: { done: 3, total: 12 }, volumes: [moving('a', 1)] }));
    await screen.show(view({ items: { done: 4, total: 12 }, volumes: [moving('a', 2)] }));
    const volumes = [done('a'), failed('b', 'no luck')];
    await screen.show(view({ items: { done: 4, total: 12 }, volumes }));
    await screen.show(view({ items: { done: 5, total: 12 }, volumes }));
    expect(lines).toEqual([
      expect.stringMatching(/^backup nightly: Queued, 0 items, .* so far$/),
      'backup nightly: it is number 2 in the queue',
      expect.stringMatching(/^backup nightly: InProgress, 25%, 1.0 of 4.0 GiB, 3 items/),
      'backup nightly: volume app/a done, 1.0 GiB',
      'backup nightly: volume app/b Failed: no luck',
    ]);
    const soon = new PlainWait((line) => Promise.resolve(void lines.push(line)), 0);
    lines.length = 0;
    await soon.show(view({}));
    await soon.show(view({}));
    expect(lines).toHaveLength(2);
  });
});

describe('waiting for an end', () => {
  let api: Api;
  beforeAll(async () => {
    api = await Api.start('wait');
  });
  afterAll(() => api[Symbol.asyncDispose]());

  /** The shown views. */
  class Seen implements WaitScreen {
    last: WaitView | undefined;
    show(now: WaitView): Promise<void> {
      this.last = now;
      return Promise.resolve();
    }
    async until(isSo: (now: WaitView) => boolean): Promise<void> {
      while (!this.last || !isSo(this.last)) await sleep(5);
    }
  }
  const begin = (object: KubeObject, noun = BACKUP, signal?: AbortSignal) => {
    const screen = new Seen();
    const ended = waitForEnd(noun, object, api.session(signal), { screen, everyMs: 5 });
    ended.catch(() => undefined);
    return { screen, ended };
  };
  const labelsOf = ({ metadata: { name, uid } }: KubeObject, word = 'backup'): object => ({
    [`velero.io/${word}-name`]: name,
    [`velero.io/${word}-uid`]: uid,
  });

  it('shows items and the volumes of this very backup, and is over when that is', async () => {
    const backup = await api.add(BACKUPS, 'good', { status: { phase: 'InProgress' } });
    const { screen, ended } = begin(backup);
    await api.set(BACKUPS, 'good', { progress: { totalItems: 9, itemsBackedUp: 4 } });
    const spec = {
      backupStorageLocation: 'default',
      sourceNamespace: 'app',
      sourcePVC: 'data',
      operationTimeout: '10m',
      snapshotType: 'CSI',
      datamover: 'velero',
    };
    const status = { phase: 'InProgress', progress: { bytesDone: 10, totalBytes: 20 } };
    await api.add(DATA_UPLOADS, 'own', { labels: labelsOf(backup), spec, status });
    await api.add(DATA_UPLOADS, 'earlier', {
      labels: { ...labelsOf(backup), 'velero.io/backup-uid': 'another' },
      spec: { ...spec, sourcePVC: 'earlier' },
      status,
    });
    await api.add(POD_VOLUME_BACKUPS, 'ofpod', {
      labels: labelsOf(backup),
      spec: {
        node: 'n-1',
        volume: 'v',
        uploaderType: 'kopia',
        backupStorageLocation: 'default',
        pod: { namespace: 'app', name: 'p' },
        repoIdentifier: '',
        tags: {},
      },
    });
    await screen.until(({ items, volumes = [] }) => items.done === 4 && volumes.length === 2);
    expect(screen.last?.volumes?.map((each) => each.volume).sort()).toEqual([
      'app/data',
      'app/p/v',
    ]);
    await api.set(BACKUPS, 'good', { phase: 'Completed' });
    await ended;
    expect(screen.last?.phase).toBe('Completed');
  });

  it('of a restore, too', async () => {
    const restore = await api.add(RESTORES, 'back', { status: { phase: 'InProgress' } });
    const { screen, ended } = begin(restore, RESTORE);
    await api.set(RESTORES, 'back', { progress: { totalItems: 9, itemsRestored: 5 } });
    await api.add(DATA_DOWNLOADS, 'down', {
      labels: labelsOf(restore, 'restore'),
      spec: {
        targetVolume: { namespace: 'app', pvc: 'data', pv: '' },
        backupStorageLocation: 'default',
        sourceNamespace: 'app',
        snapshotID: 'x',
        operationTimeout: '10m',
        datamover: 'velero',
      },
    });
    await screen.until(({ items, volumes = [] }) => items.done === 5 && volumes.length === 1);
    await api.set(RESTORES, 'back', { phase: 'PartiallyFailed', errors: 2 });
    await expect(ended).rejects.toMatchObject({
      code: 'NOT_COMPLETED',
      message: expect.stringMatching(
        /^restore back has ended as PartiallyFailed with 2 errors .*"longshore restore describe back"/,
      ) as string,
    });
  });

  it.each([
    ['Failed', { failureReason: 'the bucket is full' }, /as Failed: the bucket is full \(.*logs/],
    // A backup that fails validation has no log.
    [
      'FailedValidation',
      { validationErrors: ['a', 'b'] },
      /as FailedValidation: a; b \(.*"longshore backup describe failedvalidation" says what to do$/,
    ],
  ])('%s is an error that says why', async (phase, more, text) => {
    const name = phase.toLowerCase();
    const backup = await api.add(BACKUPS, name, {});
    const { ended } = begin(backup);
    await api.set(BACKUPS, name, { phase, ...more });
    await expect(ended).rejects.toMatchObject({
      code: 'NOT_COMPLETED',
      message: expect.stringMatching(text) as string,
    });
  });

  it('one that is deleted, or another one of its name, is not waited for', async () => {
    const backup = await api.add(BACKUPS, 'gone', {});
    const { ended } = begin(backup);
    await api.client.delete(BACKUPS, backup.metadata);
    await api.add(BACKUPS, 'gone', { status: { phase: 'Completed' } });
    await expect(ended).rejects.toMatchObject({
      code: 'RUN_GONE',
      message: 'backup gone was deleted while it was waited for',
    });
  });

  it('Ctrl-C ends the wait, and leaves the backup alone', async () => {
    const backup = await api.add(BACKUPS, 'goes-on', { status: { phase: 'InProgress' } });
    const controller = new AbortController();
    const { screen, ended } = begin(backup, BACKUP, controller.signal);
    await screen.until(({ phase }) => phase === 'InProgress');
    controller.abort(new CanceledError('user'));
    await expect(ended).rejects.toMatchObject({
      code: 'CANCELED',
      message:
        'no longer waiting: backup goes-on goes on in the cluster; "longshore backup describe goes-on" shows how far it is',
    });
    const { metadata, spec } = (await api.client.get(BACKUPS, backup.metadata)) as KubeObject & {
      spec: object;
    };
    expect(metadata.annotations).toBeUndefined();
    expect(spec).toEqual({});
  });

  it('an API server that is away is waited for', async () => {
    const backup = await api.add(BACKUPS, 'outage', { status: { phase: 'InProgress' } });
    const { client, namespace, signal } = api.session();
    let isAway = false;
    const find: typeof client.find = async (resource, ref, options) => {
      if (isAway) {
        const { CodedError } = await import('../../../src/base/index.ts');
        throw new CodedError('KUBE_UNAVAILABLE', 'get backup: HTTP status 503');
      }
      return client.find(resource, ref, options);
    };
    const flaky = withCalls(client, { find });
    const screen = new Seen();
    const session = { client: flaky, namespace, signal };
    const ended = waitForEnd(BACKUP, backup, session, { screen, everyMs: 5 });
    await screen.until(({ phase }) => phase === 'InProgress');
    isAway = true;
    await api.set(BACKUPS, 'outage', { phase: 'Completed' });
    await sleep(50);
    expect(screen.last?.phase).toBe('InProgress');
    isAway = false;
    await ended;
  });

  it('nothing is said of servers that take nothing up while nobody can know it', async () => {
    const backup = await api.add(BACKUPS, 'unknown', {});
    const { CodedError } = await import('../../../src/base/index.ts');
    let looks = 0;
    const find: typeof api.client.find = (resource, ref, options) =>
      ++looks <= 3
        ? Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'get backup: HTTP status 503'))
        : api.client.find(resource, ref, options);
    const session = { ...api.session(), client: withCalls(api.client, { find }) };
    const screen = new Seen();
    const notes: (string | undefined)[] = [];
    const show = screen.show.bind(screen);
    screen.show = async (view) => {
      if (looks <= 3) notes.push(view.note);
      await show(view);
    };
    const ended = waitForEnd(BACKUP, backup, session, { screen, everyMs: 5, takenUpMs: -1 });
    await screen.until(({ note }) => note?.includes('no server has taken it up') === true);
    expect(notes).toEqual([undefined, undefined, undefined]);
    await api.set(BACKUPS, 'unknown', { phase: 'Completed' });
    await ended;
  });

  it.each(['KUBE_UNAUTHORIZED', 'KUBE_FORBIDDEN'])(
    'a wait that may not look any more (%s) says that the backup goes on',
    async (code) => {
      const backup = await api.add(BACKUPS, `refused-${code.length}`, {});
      const { CodedError } = await import('../../../src/base/index.ts');
      const find = () => Promise.reject(new CodedError(code, 'get backup: the token has expired'));
      const session = { ...api.session(), client: withCalls(api.client, { find }) };
      await expect(
        waitForEnd(BACKUP, backup, session, { screen: new Seen(), everyMs: 5, refusedMs: 20 }),
      ).rejects.toMatchObject({
        code,
        message: expect.stringMatching(
          new RegExp(
            `^no longer waiting: get backup: the token has expired.*; backup ${backup.metadata.name} goes on in the cluster$`,
          ),
        ) as string,
      });
    },
  );

  it('a wait survives an API server that refuses it for a moment', async () => {
    const backup = await api.add(BACKUPS, 'refused-for-now', {});
    const { CodedError } = await import('../../../src/base/index.ts');
    let looks = 0;
    const find = (): Promise<unknown> =>
      looks++ < 3
        ? Promise.reject(new CodedError('KUBE_UNAUTHORIZED', 'get backup: Unauthorized'))
        : Promise.resolve({ ...backup, status: { phase: 'Completed' } });
    const session = { ...api.session(), client: withCalls(api.client, { find }) };
    await waitForEnd(BACKUP, backup, session, { screen: new Seen(), everyMs: 5 });
    expect(looks).toBe(4);
  });

  it('with --wait the exit code says how it ended, and lines how it went', async () => {
    const running = api.longshore('backup', 'create', 'whole', '--wait');
    while (!(await api.client.find(BACKUPS, { namespace: 'velero', name: 'whole' })))
      await sleep(5);
    await api.set(BACKUPS, 'whole', { phase: 'Completed', progress: { itemsBackedUp: 7 } });
    const { code, out, err } = await running;
    expect(err).toBe('');
    expect(out).toMatch(
      /^backup whole is requested\nbackup whole: .*\nbackup whole has ended: Completed \(7 items, \d\.\d s\)\n$/s,
    );
    expect(out).not.toContain('\u001b');
    expect(code).toBe(0);
    const failing = api.longshore('backup', 'create', 'half', '-w');
    while (!(await api.client.find(BACKUPS, { namespace: 'velero', name: 'half' }))) await sleep(5);
    await api.set(BACKUPS, 'half', { phase: 'PartiallyFailed', errors: 1 });
    expect(await failing).toMatchObject({
      code: 1,
      err: expect.stringMatching(
        /^longshore: backup half has ended as PartiallyFailed with 1 error/,
      ) as string,
    });
  });
});
