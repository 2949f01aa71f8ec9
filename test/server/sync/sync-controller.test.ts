import * as fs from 'node:fs';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import {
  CodedError,
  ManualClock,
  parseGoTime,
  SECOND_NS,
  silentLogger,
} from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  connectToCluster,
  EVENTS,
  type KubeClient,
  NAMESPACES,
} from '../../../src/kube/index.ts';
import { SharedBackups, SyncController } from '../../../src/server/index.ts';
import type { OpenBucket } from '../../../src/server/backups/contract.ts';
import { LOOK_MS } from '../../../src/server/sync/sync-controller.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { callsThrough, withCalls } from '../../support/with-calls.ts';

const VELERO = 'velero';
const scratch = tempDirectory('sync-controller');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

/** A bucket that fails after its close. */
function openBucket(bucket: MemoryBucket): OpenBucket {
  let isClosed = false;
  return {
    bucket: callsThrough(bucket, (_, __, go) => {
      if (isClosed) throw new Error('the bucket is closed');
      return go();
    }),
    [Symbol.asyncDispose]: () => {
      isClosed = true;
      return Promise.resolve();
    },
  };
}

describe('the sync of all locations', () => {
  let server: ApiServer;
  let client: KubeClient;
  let clock: ManualClock;
  let stop: (() => Promise<void>)[];
  let registry: Registry;
  let assertLeading: () => void;
  const buckets = new Map<string, MemoryBucket>();
  /** Names of locations in the order of their opening. */
  let opened: string[];

  beforeEach(async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
    clock = new ManualClock(parseGoTime('2026-11-21T02:00:00Z'));
    server = await ApiServer.start({ clock });
    const kubeconfig = join(scratch, 'kubeconfig');
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = withCalls(connectToCluster({ kubeconfig, userAgent: 'test/1' }), { clock });
    await client.create(NAMESPACES, { metadata: { name: VELERO } });
    buckets.clear();
    [stop, opened] = [[], []];
    assertLeading = () => undefined;
  });
  afterEach(async () => {
    for (const each of stop) await each();
    client.close();
    await server[Symbol.asyncDispose]();
    vi.useRealTimers();
  });

  function lead(): () => Promise<void> {
    const abort = new AbortController();
    registry = new Registry();
    const common = { client, logger: silentLogger, namespace: VELERO };
    const controller = new SyncController({
      ...common,
      host: 'h',
      registry,
      periodMs: 60_000,
      backups: new SharedBackups(common),
      buckets: {
        open: (name) => {
          opened.push(name);
          const bucket = buckets.get(name);
          return bucket
            ? Promise.resolve(openBucket(bucket))
            : Promise.reject(new CodedError('STORAGE_FAILED', 'it is away'));
        },
      },
    });
    const running = controller.run(abort.signal, () => {
      assertLeading();
    });
    const end = async (): Promise<void> => {
      abort.abort();
      await running.catch(() => undefined);
    };
    stop.push(end);
    return end;
  }

  async function add(
    name: string,
    spec: object = {},
    phase = 'Available',
    metadata: object = {},
  ): Promise<void> {
    buckets.set(name, new MemoryBucket());
    await client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: { ...metadata, namespace: VELERO, name },
      spec: { provider: 'aws', objectStorage: { bucket: name }, ...spec },
      status: { phase },
    } as never);
  }
  const store = (location: string, name: string, status: object = {}): void => {
    const kind = { apiVersion: 'velero.io/v1', kind: 'Backup' };
    const backup = {
      ...kind,
      metadata: { name },
      spec: {},
      status: { phase: 'Completed', ...status },
    };
    buckets
      .get(location)
      ?.objects.set(`backups/${name}/velero-backup.json`, Buffer.from(JSON.stringify(backup)));
  };
  const names = async (): Promise<string[]> =>
    (await client.list(BACKUPS, { namespace: VELERO })).map(({ metadata }) => metadata.name).sort();
  const synced = async (name: string): Promise<unknown> =>
    (await client.get(BACKUP_STORAGE_LOCATIONS, { namespace: VELERO, name })).status
      ?.lastSyncedTime ?? undefined;
  const pass = (seconds: number): void => {
    clock.advance(BigInt(seconds) * SECOND_NS);
    vi.advanceTimersByTime(Math.max(LOOK_MS, seconds * 1000));
  };
  const eventually = (what: () => unknown) => expect.poll(what, { timeout: 10_000, interval: 5 });

  it('tells in an Event of a backup that had expired before it was found', async () => {
    await add('a');
    store('a', 'b1', { expiration: '2020-01-01T00:00:00Z' });
    lead();
    await expect.poll(names, { timeout: 10_000, interval: 5 }).toEqual(['b1']);
    const told = async (): Promise<string[]> =>
      (await client.list(EVENTS, { namespace: VELERO })).map(
        ({ reason, message }) => `${reason ?? ''}: ${message ?? ''}`,
      );
    await expect
      .poll(told, { timeout: 10_000, interval: 5 })
      .toEqual([expect.stringMatching(/^ExpiredBeforeSync: .*longshore backup delete b1$/)]);
  });

  it('brings what each of them has, the default one first', async () => {
    await add('a');
    await add('b', { default: true });
    await add('c', { accessMode: 'ReadOnly' });
    for (const [location, name] of [
      ['a', 'one'],
      ['b', 'two'],
      ['c', 'three'],
    ] as const) {
      store(location, name);
    }
    lead();
    await eventually(names).toEqual(['one', 'three', 'two']);
    expect(opened[0]).toBe('b');
    await eventually(() => synced('c')).toBe('2026-11-21T02:00:00Z');
  });

  it('looks at each when its own time has come, and at none that says never', async () => {
    await add('often');
    await add('seldom', { backupSyncPeriod: '10m' });
    await add('never', { backupSyncPeriod: '0s' });
    lead();
    await eventually(() => synced('often')).toBeDefined();
    await eventually(() => synced('seldom')).toBeDefined();
    for (const each of ['often', 'seldom', 'never']) store(each, `in-${each}`);
    pass(61);
    await eventually(names).toEqual(['in-often']);
    for (let at = 0; at < 9; at++) {
      pass(60);
      await eventually(() => synced('often')).toBe(
        new Date(Number(clock.nowNs() / 1_000_000n)).toISOString().replace('.000', ''),
      );
    }
    await eventually(names).toEqual(['in-often', 'in-seldom']);
    expect(opened).not.toContain('never');
  });

  it('extends the locks of backups also where it may sync nothing, or cannot', async () => {
    const metadata = { annotations: { 'longshore.io/retention': '720h' } };
    await add('never', { backupSyncPeriod: '0s' }, 'Available', metadata);
    await add('broken', {}, 'Available', metadata);
    const locked = new Set<string>();
    for (const location of ['never', 'broken']) {
      store(location, `in-${location}`);
      store(location, 'other');
      const bucket = Object.assign(buckets.get(location) ?? new MemoryBucket(), {
        extendRetention: (key: string) => Promise.resolve(void locked.add(key)),
      });
      if (location === 'broken') {
        bucket.listFolders = () => {
          throw new CodedError('STORAGE_FAILED', 'it cannot be listed');
        };
      }
      await client.create(BACKUPS, {
        metadata: { namespace: VELERO, name: `in-${location}` },
        spec: { storageLocation: location },
        status: { phase: 'Completed', expiration: '2027-01-01T00:00:00Z' },
      });
    }
    lead();
    const file = (name: string): string => `backups/${name}/velero-backup.json`;
    await eventually(() => Promise.resolve([...locked].sort())).toEqual([
      file('in-broken'),
      file('in-never'),
    ]);
    expect(await names()).toEqual(['in-broken', 'in-never']);
    expect(await synced('never')).toBeUndefined();
  });

  it('leaves those that are not available, until they are', async () => {
    await add('away', {}, 'Unavailable');
    await add('new', {}, '');
    await add('here');
    for (const each of ['away', 'new', 'here']) store(each, `in-${each}`);
    lead();
    await eventually(() => synced('here')).toBeDefined();
    expect(opened).toEqual(['here']);
    const ref = { namespace: VELERO, name: 'away' };
    await client.patch(BACKUP_STORAGE_LOCATIONS, ref, { status: { phase: 'Available' } });
    await eventually(() => {
      pass(0);
      return names();
    }).toEqual(['in-away', 'in-here']);
  });

  it('tries again in a minute where a bucket does not answer, and keeps no other one waiting', async () => {
    await add('bad');
    await add('good');
    buckets.delete('bad');
    store('good', 'b1');
    lead();
    await eventually(names).toEqual(['b1']);
    await eventually(() => opened.filter((name) => name === 'bad')).toHaveLength(1);
    for (let at = 0; at < 5; at++) pass(5);
    expect(opened.filter((name) => name === 'bad')).toHaveLength(1);
    buckets.set('bad', new MemoryBucket());
    store('bad', 'b2');
    await eventually(() => {
      pass(10);
      return names();
    }).toEqual(['b1', 'b2']);
  });

  it('writes nothing once this process does not lead', async () => {
    assertLeading = () => {
      throw new CodedError('LEADERSHIP_LOST', 'another one leads');
    };
    await add('a');
    store('a', 'b1');
    const end = lead();
    await eventually(() => opened).toHaveLength(1);
    await end();
    expect(await names()).toEqual([]);
    expect(await synced('a')).toBeUndefined();
  });

  it('extends the locks of backups where the location says for how long, or tells why not', async () => {
    for (const name of ['locked', 'plain', 'unable', 'read-only']) {
      await add(name, name === 'read-only' ? { accessMode: 'ReadOnly' } : {});
      store(name, `of-${name}`);
      if (name === 'plain') continue;
      const annotations = { 'longshore.io/retention': '240h' };
      const ref = { namespace: VELERO, name };
      await client.patch(BACKUP_STORAGE_LOCATIONS, ref, { metadata: { annotations } });
    }
    const locked: string[] = [];
    for (const name of ['locked', 'plain', 'read-only']) {
      Object.assign(buckets.get(name) ?? {}, {
        extendRetention: (key: string, { periodNs }: { periodNs: bigint }) => {
          locked.push(`${key} for ${periodNs / 3_600_000_000_000n} h`);
          return Promise.resolve();
        },
      });
    }
    lead();
    await eventually(() => names()).toHaveLength(4);
    for (const name of await names()) {
      const ref = { namespace: VELERO, name };
      await client.patch(BACKUPS, ref, { status: { expiration: '2026-12-21T02:00:00Z' } });
    }
    await eventually(() => {
      pass(61);
      return locked;
    }).toEqual(['backups/of-locked/velero-backup.json for 240 h']);
    await eventually(async () => {
      const events = await client.list(EVENTS, { namespace: VELERO });
      return events.map((event) => (event as { reason?: string }).reason);
    }).toContain('LocksNotExtended');
    // The sync of the location continues.
    store('unable', 'later');
    await eventually(async () => {
      pass(61);
      return names();
    }).toContain('later');
    expect(locked).toHaveLength(1);
  });

  it('extends the locks of all backups also where the location is synced once a day', async () => {
    const annotations = { 'longshore.io/retention': '240h' };
    await add('daily', { backupSyncPeriod: '24h' }, 'Available', { annotations });
    const locked = new Set<string>();
    const extendRetention = (key: string): Promise<void> => Promise.resolve(void locked.add(key));
    const { objects } = Object.assign(buckets.get('daily') ?? new MemoryBucket(), {
      extendRetention,
    });
    const status = { phase: 'Completed', expiration: '2027-01-01T00:00:00Z' };
    for (let i = 0; i < 450; i++) {
      const metadata = { namespace: VELERO, name: `b${i}` };
      objects.set(`backups/b${i}/velero-backup.json`, Buffer.from('{}'));
      const spec = { storageLocation: 'daily' };
      await client.create(BACKUPS, { metadata, spec, status });
    }
    lead();
    await eventually(() => synced('daily')).toBeDefined();
    await eventually(() => locked.size).toBe(200);
    const lists = vi.spyOn(buckets.get('daily') ?? {}, 'listFolders' as never);
    for (const count of [400, 450]) {
      await eventually(() => {
        pass(1);
        return locked.size;
      }).toBe(count);
    }
    expect(lists).not.toHaveBeenCalled();
    expect(clock.nowNs() - parseGoTime('2026-11-21T02:00:00Z')).toBeGreaterThan(100n * SECOND_NS);
    for (let at = 0; at < 30; at++) pass(1);
    expect(opened).toHaveLength(3);
  });

  it('says that backups are not where a location points now, once', async () => {
    await add('a');
    store('a', 'b1');
    lead();
    await eventually(() => synced('a')).toBeDefined();
    await client.patch(
      BACKUP_STORAGE_LOCATIONS,
      { namespace: VELERO, name: 'a' },
      { spec: { objectStorage: { bucket: 'other' } } },
    );
    buckets.get('a')?.objects.clear();
    await eventually(async () => {
      pass(61);
      const events = await client.list(EVENTS, { namespace: VELERO });
      return events.map((event) => (event as { reason?: string }).reason);
    }).toContain('BackupsElsewhere');
    for (let at = 0; at < 20; at++) pass(61);
    expect(await names()).toEqual(['b1']);
    expect(await registry.metrics()).toContain(
      'longshore_backup_sync_missing_backups{backup_location_name="a"} 1',
    );
  });

  it('keeps a signed Backup whose files somebody removed, unlike one that was not signed', async () => {
    await add('a');
    for (let at = 1; at <= 8; at++) store('a', `b${at}`);
    lead();
    await eventually(names).toHaveLength(8);
    const signed = { metadata: { annotations: { 'longshore.io/signed': 'true' } } };
    await client.patch(BACKUPS, { namespace: VELERO, name: 'b1' }, signed);
    for (const name of ['b1', 'b2']) {
      buckets.get('a')?.objects.delete(`backups/${name}/velero-backup.json`);
    }
    await eventually(async () => {
      pass(61);
      return names();
    }).not.toContain('b2');
    expect(await names()).toEqual(['b1', 'b3', 'b4', 'b5', 'b6', 'b7', 'b8']);
  });

  it('tells no numbers before its first sync, so that a restart ends no alert', async () => {
    await add('a');
    await add('b');
    buckets.delete('a');
    lead();
    await eventually(() => synced('b')).toBeDefined();
    await eventually(() => opened.includes('a')).toBe(true);
    const metrics = await registry.metrics();
    expect(metrics).toContain('longshore_backup_sync_refused_backups{backup_location_name="b"} 0');
    expect(metrics).not.toContain('backup_location_name="a"');
  });
});
