import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, vi } from 'vitest';
import {
  type EndedMoverLog,
  MoverLogs,
  type MoverLogStore,
} from '../../../src/agent/mover/mover-logs.ts';
import type { Movement } from '../../../src/agent/movement.ts';
import { CodedError, type Logger, silentLogger, systemClock } from '../../../src/base/index.ts';
import { aPod } from '../../support/builders.ts';

const MIB = 1 << 20;
const POD = aPod({ metadata: { name: 'p', uid: 'p-1' }, spec: { nodeName: 'node-1' } });

const upload = (over: object = {}, name = 'up'): Movement =>
  ({
    metadata: { name, uid: `uid-${name}`, labels: { 'velero.io/backup-name': 'b1' } },
    spec: { sourceNamespace: 'app', sourcePVC: 'data', backupStorageLocation: 'default', ...over },
  }) as never;

/** The Backups and Restores that there are, and what became of logs. */
class World {
  readonly objects = new Map<string, object>([
    ['Backup/b1', { metadata: { name: 'b1', uid: 'u1' } }],
  ]);
  readonly added: EndedMoverLog[] = [];
  readonly removed: EndedMoverLog[] = [];
  readonly warnings: { error?: string }[] = [];
  opened = 0;
  closed = 0;
  addingMax = 0;
  /** Runs in the bucket before it stores a log. */
  beforeAdd: (log: EndedMoverLog, signal: AbortSignal) => Promise<void> = () => Promise.resolve();
  open: MoverLogStore['open'] = () => {
    this.opened++;
    let adding = 0;
    return Promise.resolve({
      add: async (log, { signal }) => {
        this.addingMax = Math.max(this.addingMax, ++adding + this.opened - this.closed - 1);
        await this.beforeAdd(log, signal);
        this.added.push(log);
      },
      remove: (log) => {
        this.removed.push(log);
        return Promise.resolve();
      },
      [Symbol.asyncDispose]: () => {
        this.closed++;
        return Promise.resolve();
      },
    });
  };
  readonly logs: MoverLogs;

  constructor(storeMs = 30_000) {
    const logger: Logger = {
      ...silentLogger,
      warn: (fields: object) => {
        this.warnings.push(fields);
      },
    };
    this.logs = new MoverLogs({
      client: {
        find: (resource: { kind: string }, ref: { name: string }) =>
          Promise.resolve(this.objects.get(`${resource.kind}/${ref.name}`)),
      } as never,
      clock: systemClock,
      logger,
      namespace: 'velero',
      storeMs,
      store: { open: (location, signal) => this.open(location, signal) },
    });
  }
}

const hang = (_log: EndedMoverLog, signal: AbortSignal): Promise<void> =>
  new Promise((_resolve, reject) => {
    const end = (): void => reject(signal.reason as Error);
    if (signal.aborted) end();
    signal.addEventListener('abort', end, { once: true });
  });

describe('the log of a data mover that has ended', () => {
  it('is put for the backup of its CR', async () => {
    const world = new World();
    world.logs.keep(upload(), POD, 'text');
    await world.logs.drain();
    expect(world.added).toEqual([
      {
        owner: { kind: 'Backup', name: 'b1', uid: 'u1' },
        volume: 'app.data',
        title: 'DataUpload up',
        node: 'node-1',
        pod: 'p-1',
        time: expect.any(String) as string,
        text: Buffer.from('text'),
      },
    ]);
    expect([world.closed, world.removed, world.warnings]).toEqual([1, [], []]);
  });

  const pod = { namespace: 'app', name: 'web' };
  const restored = {
    labels: { 'velero.io/restore-name': 'short-ab12' },
    ownerReferences: [{ apiVersion: 'velero.io/v1', kind: 'Restore', name: 'long', uid: 'u2' }],
  };
  it.each<[string, object, object, string, string]>([
    [
      'DataDownload',
      restored,
      { targetVolume: { namespace: 'app', pvc: 'back', pv: '' } },
      'app.back',
      'Restore',
    ],
    [
      'PodVolumeBackup',
      { labels: { 'velero.io/backup-name': 'b1' } },
      { pod, volume: 'v', node: 'node-1' },
      'app.web_v',
      'Backup',
    ],
    ['PodVolumeRestore', restored, { pod, volume: 'v' }, 'app.web_v', 'Restore'],
  ])('of a %s is put under its volume', async (kind, metadata, spec, volume, owner) => {
    const world = new World();
    world.objects.set('Restore/long', { metadata: { name: 'long', uid: 'u2' } });
    const movement = {
      metadata: { name: 'cr', uid: 'cr', ...metadata },
      spec: { backupStorageLocation: 'default', ...spec },
    } as never as Movement;
    world.logs.keep(movement, POD, 'text');
    await world.logs.drain();
    const name = owner === 'Backup' ? 'b1' : 'long';
    expect(
      world.added.map((log) => [log.title, log.volume, log.owner.kind, log.owner.name]),
    ).toEqual([[`${kind} cr`, volume, owner, name]]);
  });

  it('is kept nowhere for a CR that is of no backup', async () => {
    const world = new World();
    const movement = upload();
    delete movement.metadata.labels;
    world.logs.keep(movement, POD, 'text');
    await world.logs.drain();
    expect([world.opened, world.added]).toEqual([0, []]);
  });

  it.each<[string, object | undefined]>([
    ['is gone', undefined],
    ['is being deleted by Velero', { metadata: { uid: 'u1' }, status: { phase: 'Deleting' } }],
    ['waits for its finalizers', { metadata: { uid: 'u1', deletionTimestamp: 'x' } }],
    ['is another one of the name', { metadata: { uid: 'u9' } }],
  ])('is not put for a backup that %s', async (_, backup) => {
    const world = new World();
    if (backup) world.objects.set('Backup/b1', backup);
    else world.objects.clear();
    const movement = upload();
    movement.metadata.ownerReferences = [
      { apiVersion: 'velero.io/v1', kind: 'Backup', name: 'b1', uid: 'u1' },
    ];
    world.logs.keep(movement, POD, 'text');
    await world.logs.drain();
    expect([world.opened, world.added, world.warnings]).toEqual([0, [], []]);
  });

  it('is removed where its backup was deleted while it was put', async () => {
    const world = new World();
    world.beforeAdd = () => {
      world.objects.set('Backup/b1', { metadata: { uid: 'u1' }, status: { phase: 'Deleting' } });
      return Promise.resolve();
    };
    world.logs.keep(upload(), POD, 'text');
    await world.logs.drain();
    expect(world.removed).toEqual(world.added);
    expect(world.added).toHaveLength(1);
  });

  it('is put nowhere in a location that is read-only', async () => {
    const world = new World();
    world.open = () => Promise.resolve(undefined);
    world.logs.keep(upload(), POD, 'text');
    await world.logs.drain();
    expect([world.added, world.warnings]).toEqual([[], []]);
  });

  it('is lost, with a line in the log, where the bucket refuses it', async () => {
    const world = new World();
    world.open = () => Promise.reject(new CodedError('NO_LOCATION', 'there is none'));
    world.logs.keep(upload(), POD, 'text');
    await world.logs.drain();
    expect(world.warnings).toEqual([{ dataUpload: 'up', uid: 'uid-up', error: 'there is none' }]);
  });
});

describe('a bucket that hangs', () => {
  it('holds up nobody, and is given up', async () => {
    const world = new World(200);
    world.beforeAdd = hang;
    for (let i = 0; i < 4; i++) world.logs.keep(upload({}, `up${i}`), POD, 'text');
    expect([world.warnings, world.added]).toEqual([[], []]);
    await vi.waitFor(() => expect(world.closed).toBe(4), 20_000);
    expect(world.warnings).toHaveLength(4);
    expect(world.addingMax).toBe(2);
  });

  it('keeps the logs of no other location', async () => {
    const world = new World();
    world.beforeAdd = (log, signal) =>
      log.volume === 'app.data' ? hang(log, signal) : Promise.resolve();
    for (let i = 0; i < 10; i++) world.logs.keep(upload(), POD, 'text');
    const other = { sourcePVC: 'other', backupStorageLocation: 'second' };
    world.logs.keep(upload(other), POD, 'text');
    await vi.waitFor(() => expect(world.added).toHaveLength(1), 20_000);
    expect(world.added.map(({ volume }) => volume)).toEqual(['app.other']);
    await world.logs.drain(10);
    expect(world.warnings.at(-1)?.error).toBe('the agent is ending');
  });

  it('has no more than so much wait for it', async () => {
    const world = new World();
    world.beforeAdd = hang;
    const text = 'x'.repeat(MIB);
    for (let i = 0; i < 100; i++) world.logs.keep(upload(), POD, text);
    expect(world.warnings).toHaveLength(92);
    expect(world.warnings[0]?.error).toBe('too many other logs wait for their bucket');
    await world.logs.drain(10);
    expect(world.warnings).toHaveLength(100);
  });

  it('does not keep an agent from its end, also where it does not stop', async () => {
    const world = new World();
    world.beforeAdd = () => new Promise(() => undefined);
    world.logs.keep(upload(), POD, 'text');
    await sleep(10);
    const sinceMs = performance.now();
    await world.logs.drain(10);
    expect(performance.now() - sinceMs).toBeLessThan(20_000);
  });

  it('lets an agent end that is told to', async () => {
    const world = new World();
    world.beforeAdd = hang;
    world.logs.keep(upload(), POD, 'text');
    const sinceMs = performance.now();
    await world.logs.drain(100);
    expect(performance.now() - sinceMs).toBeLessThan(20_000);
    world.logs.keep(upload(), POD, 'late');
    expect(world.opened).toBe(1);
  });
});
