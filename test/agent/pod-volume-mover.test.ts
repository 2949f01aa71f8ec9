import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { runDataMover } from '../../src/agent/mover/data-mover.ts';
import type { MovedKind } from '../../src/agent/mover/moved-kinds.ts';
import { type EventResult, eventResultOf } from '../../src/agent/mover/event-result.ts';
import { CodedError, silentLogger, systemClock } from '../../src/base/index.ts';
import type {
  Event,
  KubeObject,
  Pod,
  PodVolumeBackup,
  Resource,
  WatchEvent,
} from '../../src/kube/index.ts';
import { podVolumeSource } from '../../src/mover/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { listSnapshots } from '../../src/snapshot/index.ts';
import { createTest, openTest } from '../support/repositories.ts';
import { age } from '../support/trees.ts';

const RESTORE_UID = '0b5c0b3e-6f0e-4a52-9c1f-3b6d1d5a7e11';
const work = fs.mkdtempSync(join(tmpdir(), 'longshore-pod-mover-'));

/** The API server of a data mover. Objects are found by kind and name. */
class OneNamespace {
  readonly clock = systemClock;
  readonly objects = new Map<string, KubeObject>();
  readonly events: { reason: string; message: string; apiVersion: string; kind: string }[] = [];
  readonly repositories: string[] = [];
  /** What agents take from an Event for the outcome. */
  told: EventResult | undefined;
  onTold: (() => void) | undefined;
  /** Thrown by as many questions for a pod. */
  readonly refusals: Error[] = [];
  /** Thrown by as many patches of other objects than Events. */
  readonly patchRefusals: Error[] = [];
  onPod: (() => void) | undefined;
  isListRefused = false;
  /** As of a watch that is late. */
  isWatchSilent = false;
  lists = 0;

  put(kind: string, object: object): void {
    const known = object as KubeObject;
    this.objects.set(`${kind}/${known.metadata.name}`, { ...known, kind });
  }

  #of(kind: string): KubeObject[] {
    return [...this.objects.entries()].flatMap(([key, object]) =>
      key.startsWith(`${kind}/`) ? object : [],
    );
  }

  listPage(
    { kind }: Resource<KubeObject>,
    { fieldSelector, labelSelector }: { fieldSelector?: string; labelSelector?: string },
  ): Promise<object> {
    if (fieldSelector === undefined) {
      this.lists++;
      if (this.isListRefused) {
        return Promise.reject(new CodedError('KUBE_FORBIDDEN', 'not allowed'));
      }
      const [key = '', value] = (labelSelector ?? '').split('=');
      const items = this.#of(kind).filter(
        ({ metadata }) => !labelSelector || metadata.labels?.[key] === value,
      );
      return Promise.resolve({ items, resourceVersion: '1' });
    }
    const name = fieldSelector.replace('metadata.name=', '');
    const items = this.#of(kind).filter(({ metadata }) => metadata.name === name);
    return Promise.resolve({ items, resourceVersion: '1' });
  }

  async *watch(
    { kind }: Resource<KubeObject>,
    { signal, fieldSelector }: { signal: AbortSignal; fieldSelector: string },
  ): AsyncGenerator<WatchEvent<KubeObject>> {
    const name = fieldSelector.replace('metadata.name=', '');
    while (!signal.aborted) {
      await sleep(20, undefined, { signal });
      const object = this.objects.get(`${kind}/${name}`);
      if (object && !this.isWatchSilent) yield { type: 'MODIFIED', object };
    }
  }

  find(
    { kind }: Resource<KubeObject>,
    { name }: { name: string },
  ): Promise<KubeObject | undefined> {
    if (kind === 'Pod') {
      const refusal = this.refusals.shift();
      if (refusal) return Promise.reject(refusal);
      const pod = this.objects.get(`Pod/${name}`);
      this.onPod?.();
      return Promise.resolve(pod);
    }
    return Promise.resolve(this.objects.get(`${kind}/${name}`));
  }

  get({ kind }: Resource<KubeObject>): Promise<object> {
    return Promise.resolve(
      kind === 'Secret'
        ? { data: { 'repository-password': Buffer.from('secret').toString('base64') } }
        : {
            kind: 'BackupStorageLocation',
            metadata: { name: 'default', namespace: 'velero' },
            spec: { provider: 'aws', objectStorage: { bucket: 'backups' } },
          },
    );
  }

  list(
    { kind }: Resource<KubeObject>,
    { labelSelector }: { labelSelector?: string },
  ): Promise<object[]> {
    if (kind === 'BackupRepository') {
      this.repositories.push(labelSelector ?? '');
      return Promise.resolve([{ status: { phase: 'Ready' } }]);
    }
    return Promise.reject(new Error(`all of ${kind} ${labelSelector ?? ''} are too many`));
  }

  create(_resource: unknown, event: Event): Promise<object> {
    const { reason = '', message = '', involvedObject } = event;
    if (!this.told && eventResultOf(event)) {
      this.told = eventResultOf(event);
      this.onTold?.();
    }
    const { apiVersion = '', kind = '' } = involvedObject;
    this.events.push({ reason, message, apiVersion, kind });
    return Promise.resolve({ metadata: { name: `e-${this.events.length}` } });
  }

  patch(
    { kind }: Resource<KubeObject>,
    { name }: { name: string },
    { message = '', metadata }: { message?: string; metadata?: Partial<KubeObject['metadata']> },
  ): Promise<object> {
    if (kind !== 'Event') {
      const refusal = this.patchRefusals.shift();
      if (refusal) return Promise.reject(refusal);
      const before = this.objects.get(`${kind}/${name}`);
      const annotations = { ...before?.metadata.annotations, ...metadata?.annotations };
      this.put(kind, { ...before, metadata: { ...before?.metadata, annotations } });
      return Promise.resolve({});
    }
    this.events.push({ reason: 'patched', message, apiVersion: '', kind: '' });
    return Promise.resolve({});
  }
}

let repository: Repository;
beforeAll(async () => {
  await createTest(join(work, 'repo'));
  repository = await openTest(join(work, 'repo'), { threads: true });
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

let api: OneNamespace;
let volume: string;
let made = 0;
beforeEach(() => {
  api = new OneNamespace();
  volume = join(work, `volume-${made++}`);
  fs.mkdirSync(volume);
  fs.writeFileSync(join(volume, 'file'), 'x'.repeat(5000));
});
afterEach(() => {
  fs.rmSync(volume, { recursive: true, force: true });
});

interface End {
  readonly code: number;
  readonly message: string;
}

async function run(
  kind: MovedKind,
  {
    path = volume,
    signal = new AbortController().signal,
    resourceTimeoutMs = 5000,
    closingMs = 0,
  } = {},
): Promise<End> {
  const terminationLog = join(work, `log-${made++}`);
  const code = await runDataMover({
    kind,
    client: api as never,
    logger: silentLogger,
    namespace: 'velero',
    node: 'n',
    name: 'pv-1',
    volumePath: path,
    isBlock: false,
    resourceTimeoutMs,
    progressIntervalMs: 1000,
    stallMs: 60_000,
    fenceMs: 60_000,
    settings: {},
    terminationLog,
    podUid: 'mover',
    frozenAt: undefined,
    endNow: () => undefined,
    directory: join(work, 'credentials'),
    defaultCredentials: () => undefined,
    openRepository: () =>
      Promise.resolve({ repository, [Symbol.asyncDispose]: () => sleep(closingMs) }),
    prepareRepository: () => Promise.resolve(),
    signal,
  });
  return { code, message: fs.readFileSync(terminationLog, 'utf8') };
}

const putPod = (changes: object = {}, status: object = { phase: 'Running' }): void => {
  api.put('Pod', {
    metadata: { name: 'web-0', namespace: 'app', uid: 'pod-1', ...changes },
    spec: { volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'claim' } }] },
    status,
  });
};

const backup = (spec: object = {}, metadata: object = {}): object => ({
  apiVersion: 'velero.io/v1',
  metadata: {
    name: 'pv-1',
    namespace: 'velero',
    uid: `pvb-${made}`,
    annotations: { 'velero.io/pvc-name': 'claim' },
    ...metadata,
  },
  spec: {
    node: 'n',
    volume: 'data',
    backupStorageLocation: 'default',
    repoIdentifier: '',
    pod: { kind: 'Pod', namespace: 'app', name: 'web-0', uid: 'pod-1' },
    uploaderType: 'kopia',
    ...spec,
  },
  status: { phase: 'InProgress' },
});

const snapshotsOf = (name = 'claim', pod = 'web-0') =>
  listSnapshots(repository, { source: podVolumeSource('app', pod, name) });

/** The description of a pod's volume. */
interface Volume {
  readonly pvc?: string;
  readonly pod?: string;
  readonly annotations?: string;
  readonly phase?: string;
  /** There is no PodVolumeBackup of it any more. */
  readonly isDeleted?: boolean;
  /** There was another backup before, without a PodVolumeBackup by now. */
  readonly isTwice?: boolean;
  readonly isRefused?: boolean;
}
interface Seen {
  /** Its files were read. */
  readonly isRead: boolean;
  /** How often PodVolumeBackups were listed. */
  readonly lists: number;
}

describe('longshore pod-volume backup', () => {
  beforeEach(() => {
    putPod();
  });

  it('reports as Velero does', async () => {
    api.put('PodVolumeBackup', backup());
    const { code, message } = await run('PodVolumeBackup');
    expect(code).toBe(0);
    const result = JSON.parse(message) as { snapshotID: string };
    expect(result).toEqual({
      snapshotID: expect.stringMatching(/^[0-9a-f]{32}$/) as string,
      emptySnapshot: false,
      source: { byPath: volume, volumeMode: 'Filesystem' },
      totalBytes: 5000,
      incrementalBytes: 5000,
    });
    expect((await snapshotsOf()).at(-1)?.id).toBe(result.snapshotID);
    expect(api.repositories.at(-1)).toContain('velero.io/volume-namespace=app,');
    const words = api.events.map(({ reason, message: text }) => `${reason}: ${text}`);
    expect(words).toContain('Data-Path-Started: Data path for pv-1 started');
    expect(words).toContain('Data-Path-Stopped: Data path for pv-1 stopped');
    expect(words).toContain(`Data-Path-Completed: ${message}`);
    expect(api.events[0]).toMatchObject({ apiVersion: 'velero.io/v1', kind: 'PodVolumeBackup' });
  });

  it('tells an agent of ours by which pod it was done, and its end is no matter any more then', async () => {
    api.put('PodVolumeBackup', backup());
    api.onTold = () => {
      const { status, ...rest } = backup() as { status: object };
      api.put('PodVolumeBackup', { ...rest, status: { ...status, phase: 'Completed' } });
    };
    const { code, message } = await run('PodVolumeBackup', { closingMs: 200 });
    expect(code).toBe(0);
    expect(api.told).toEqual({
      pod: 'mover',
      result: expect.objectContaining({
        snapshotID: (JSON.parse(message) as { snapshotID: string }).snapshotID,
        totalBytes: 5000,
      }) as object,
    });
    const reasons = api.events.map(({ reason }) => reason);
    expect(reasons.filter((reason) => /Cancel/.test(reason))).toEqual([]);
  });

  it.each([
    ['no annotations', { uploaderSettings: null }, { annotations: undefined }],
    ['files in parallel: 0', { uploaderSettings: { ParallelFilesUpload: '0' } }, { labels: {} }],
    ['no type, no UID of the pod', { uploaderType: undefined, pod: { namespace: 'app', name: 'web-0' } }, {}], // prettier-ignore
  ])('takes a PodVolumeBackup that a person made: %s', async (_what, spec, metadata) => {
    api.put('PodVolumeBackup', backup(spec, metadata));
    expect(await run('PodVolumeBackup')).toMatchObject({ code: 0 });
    const name = 'annotations' in metadata ? 'data' : 'claim';
    expect((await snapshotsOf(name)).length).toBeGreaterThan(0);
  });

  it.each<[string, () => void, RegExp]>([
    ['is gone', () => api.objects.delete('Pod/web-0'), /pod app\/web-0 was deleted/],
    [
      'is being deleted',
      () => putPod({ deletionTimestamp: '2026-01-01T00:00:00Z' }),
      /was deleted/,
    ],
    ['was made anew', () => putPod({ uid: 'pod-2' }), /was deleted and another pod got its name/],
    ['is over', () => putPod({}, { phase: 'Succeeded' }), /stopped running \(it is Succeeded\)/],
    ['is unknown', () => putPod({}, {}), /stopped running \(it is Unknown\)/],
  ])('saves nothing when its pod %s, before or meanwhile', async (_what, change, words) => {
    api.put('PodVolumeBackup', backup());
    const before = (await snapshotsOf()).length;
    let asked = 0;
    api.onPod = () => {
      if (++asked === 1) change();
    };
    const meanwhile = await run('PodVolumeBackup');
    expect(meanwhile.code).toBe(1);
    expect(meanwhile.message).toMatch(
      /^Failed to run data path service for PVB pv-1: Data path for PVB pv-1 failed: pod /,
    );
    expect(meanwhile.message).toMatch(words);
    expect(meanwhile.message).toMatch(/while its volume was being backed up; no snapshot/);
    const { message } = await run('PodVolumeBackup');
    expect(message).toMatch(words);
    expect(message).toMatch(/before its volume could be backed up; no snapshot was saved/);
    expect((await snapshotsOf()).length).toBe(before);
    const failed = api.events.filter(({ reason }) => reason === 'Data-Path-Failed');
    expect(failed[0]?.message).toMatch(/^Data path for PVB pv-1 failed, error pod /);
  });

  it('waits while nobody can tell about its pod, and fails in the end', async () => {
    api.put('PodVolumeBackup', backup());
    api.refusals.push(
      new CodedError('KUBE_FORBIDDEN', 'it is forbidden: User "longshore" cannot do that'),
      new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }),
    );
    expect(await run('PodVolumeBackup', { resourceTimeoutMs: 60_000 })).toMatchObject({ code: 0 });
    api.put('PodVolumeBackup', backup());
    for (let i = 0; i < 3; i++) {
      api.refusals.push(new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }));
    }
    const { message } = await run('PodVolumeBackup', { resourceTimeoutMs: 10_000 });
    expect(message).toMatch(/cannot tell whether pod app\/web-0 still has the volume: away/);
  });

  const completed = (name: string, snapshotID: string, spec: object = {}): void => {
    const object = backup(spec, { name, uid: name, labels: { 'velero.io/pvc-uid': 'pvc-1' } });
    (object as PodVolumeBackup).status = {
      phase: 'Completed',
      snapshotID,
      startTimestamp: '2026-01-01T00:00:00Z',
    };
    api.put('PodVolumeBackup', object);
  };

  it('of a pod with a new name reads nothing again where its PVC is the same', async () => {
    age(volume);
    api.put('PodVolumeBackup', backup());
    const first = JSON.parse((await run('PodVolumeBackup')).message) as { snapshotID: string };
    completed('earlier', first.snapshotID);
    completed('elsewhere', 'ff'.repeat(16), { backupStorageLocation: 'another' });
    api.put('Pod', {
      metadata: { name: 'web-1', namespace: 'app', uid: 'pod-9' },
      spec: { volumes: [] },
      status: { phase: 'Running' },
    });
    const spec = { pod: { namespace: 'app', name: 'web-1', uid: 'pod-9' } };
    const labels = { 'velero.io/pvc-uid': 'pvc-1' };
    api.put('PodVolumeBackup', backup(spec, { labels }));
    const { message } = await run('PodVolumeBackup');
    expect(JSON.parse(message)).not.toHaveProperty('incrementalBytes');
    // A list that is refused costs time, and no backup.
    api.isListRefused = true;
    api.put('PodVolumeBackup', backup({}, { labels }));
    expect(await run('PodVolumeBackup')).toMatchObject({ code: 0 });
  });

  it.each<[string, Volume, Volume, Partial<Seen>]>([
    ['another PVC of the same name', { pvc: 'pvc-1' }, { pvc: 'pvc-2' }, { isRead: true }],
    ['an emptyDir in place of a PVC', { pvc: 'pvc-1' }, {}, { isRead: true }],
    ['the emptyDir of another pod', {}, { pod: 'pod-2' }, { isRead: true }],
    ['a PVC, where nobody can tell', { pvc: 'pvc-1' }, { pvc: 'pvc-2', isRefused: true }, { isRead: true }], // prettier-ignore
    ['a PVC, where its last backup failed', { pvc: 'pvc-1', phase: 'Failed' }, { pvc: 'pvc-2' }, { isRead: true }], // prettier-ignore
    ['another PVC, where one of its backups was deleted', { pvc: 'pvc-1', isTwice: true }, { pvc: 'pvc-2' }, { isRead: true }], // prettier-ignore
    ['the same PVC', { pvc: 'pvc-1' }, { pvc: 'pvc-1', pod: 'pod-2' }, { lists: 1 }],
    ['the same emptyDir', {}, {}, {}],
    ['what a backup without labels was of', { annotations: 'claim' }, { pvc: 'pvc-1' }, {}],
    ['what nobody names', { isDeleted: true }, { pvc: 'pvc-1' }, {}],
  ])(
    'of a pod with an old name takes nothing over from another volume: %s',
    async (what, before, now, seen) => {
      // prettier-ignore
      const name = what.replaceAll(/[^a-zA-Z]+/g, '-');
      const run1 = async (volume: Volume): Promise<{ id: string; text: string }> => {
        const { pvc, pod = 'pod-1', annotations = pvc && 'claim', isRefused = false } = volume;
        api.put('Pod', {
          metadata: { name, namespace: 'app', uid: pod },
          spec: { volumes: [] },
          status: { phase: 'Running' },
        });
        const object = backup(
          { pod: { namespace: 'app', name, uid: pod }, volume: 'claim' },
          {
            uid: `${name}-${made++}`,
            annotations: annotations && { 'velero.io/pvc-name': annotations },
            labels: pvc && { 'velero.io/pvc-uid': pvc },
          },
        ) as PodVolumeBackup;
        api.isListRefused = isRefused;
        api.put('PodVolumeBackup', object);
        api.lists = 0;
        const { code, message } = await run('PodVolumeBackup');
        expect({ code, message }).toMatchObject({ code: 0 });
        const { snapshotID: id } = JSON.parse(message) as { snapshotID: string };
        if (volume.isDeleted) api.objects.delete('PodVolumeBackup/pv-1');
        else {
          const metadata = { ...object.metadata, name: `done-${made++}` };
          const status = {
            phase: volume.phase ?? 'Completed',
            startTimestamp: '2026-01-01T00:00:00Z',
            ...(volume.phase === undefined && { snapshotID: id }),
          };
          api.put('PodVolumeBackup', { ...object, metadata, status });
        }
        return { id, text: message };
      };
      const write = (text: string): void => {
        fs.writeFileSync(join(volume, 'file'), text);
        fs.utimesSync(join(volume, 'file'), 1, 1);
      };
      write('of the old volume');
      if (before.isTwice) await run1({ isDeleted: true });
      await run1(before);
      write('of the new volume');
      const { id, text } = await run1(now);
      if (seen.lists !== undefined) expect(api.lists).toBe(seen.lists);
      expect('incrementalBytes' in (JSON.parse(text) as object)).toBe(seen.isRead === true);
      const target = join(work, `target-${made++}`);
      fs.mkdirSync(target);
      putPod({}, { phase: 'Pending' });
      api.put('PodVolumeRestore', restore(id));
      expect(await run('PodVolumeRestore', { path: target })).toMatchObject({ code: 0 });
      const content = fs.readFileSync(join(target, 'file'), 'utf8');
      expect(content).toBe(seen.isRead ? 'of the new volume' : 'of the old volume');
    },
  );

  it('tells two volumes of a pod apart that are recorded under one path', async () => {
    api.put('Pod', {
      metadata: { name: 'twins', namespace: 'app', uid: 'pod-3' },
      spec: {
        volumes: [
          { name: 'claimed', persistentVolumeClaim: { claimName: 'scratch' } },
          { name: 'scratch', emptyDir: {} },
        ],
      },
      status: { phase: 'Running' },
    });
    const pod = { namespace: 'app', name: 'twins', uid: 'pod-3' };
    const move = async (name: string, text: string): Promise<{ snapshotID: string }> => {
      fs.writeFileSync(join(volume, 'file'), text);
      fs.utimesSync(join(volume, 'file'), 1, 1);
      const annotations = name === 'claimed' ? { 'velero.io/pvc-name': 'scratch' } : {};
      api.put('PodVolumeBackup', backup({ pod, volume: name }, { annotations, uid: `${made++}` }));
      const { code, message } = await run('PodVolumeBackup');
      expect({ code, message }).toMatchObject({ code: 0 });
      const result = JSON.parse(message) as { snapshotID: string };
      completed(`${name}-${text}`, result.snapshotID, { pod, volume: name });
      return result;
    };
    const results = [
      [await move('claimed', 'of the claim'), 'of the claim'],
      [await move('scratch', 'of the other'), 'of the other'],
      [await move('claimed', 'of the claim'), 'of the claim'],
    ] as const;
    expect(results[2][0]).not.toHaveProperty('incrementalBytes');
    expect((await snapshotsOf('scratch', 'twins')).length).toBe(3);
    for (const [{ snapshotID }, text] of results) {
      const target = join(work, `target-${made++}`);
      fs.mkdirSync(target);
      putPod({}, { phase: 'Pending' });
      api.put('PodVolumeRestore', restore(snapshotID));
      expect(await run('PodVolumeRestore', { path: target })).toMatchObject({ code: 0 });
      expect(fs.readFileSync(join(target, 'file'), 'utf8')).toBe(text);
    }
  });

  it('of restic is refused, before anything is opened', async () => {
    api.put('PodVolumeBackup', backup({ uploaderType: 'restic' }));
    const { code, message } = await run('PodVolumeBackup');
    expect(code).toBe(1);
    expect(message).toMatch(/for PVB pv-1: restic snapshots are restored by Velero 1.18's own/);
    expect(api.repositories).toEqual([]);
  });

  it('that is canceled says so in the words that agents look for', async () => {
    const object = backup();
    api.put('PodVolumeBackup', object);
    api.refusals.push(
      ...Array.from(
        { length: 20 },
        () => new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }),
      ),
    );
    const running = run('PodVolumeBackup', { resourceTimeoutMs: 600_000 });
    await sleep(300);
    const { spec } = object as PodVolumeBackup;
    api.put('PodVolumeBackup', { ...object, spec: { ...spec, cancel: true } });
    const { code, message } = await running;
    expect({ code, message }).toEqual({
      code: 1,
      message: 'Failed to run data path service for PVB pv-1: data path is canceled',
    });
    const words = api.events.map(({ message: text }) => text);
    expect(words).toContain('Canceling for PVB pv-1');
    expect(words).toContain('Data path for PVB pv-1 canceled');
  });
});

function restore(snapshotID: string, spec: object = {}, metadata: object = {}): object {
  return {
    apiVersion: 'velero.io/v1',
    metadata: {
      name: 'pv-1',
      namespace: 'velero',
      uid: `pvr-${made}`,
      ownerReferences: [{ kind: 'Restore', name: 'r', uid: RESTORE_UID }],
      ...metadata,
    },
    spec: {
      volume: 'data',
      backupStorageLocation: 'default',
      repoIdentifier: '',
      snapshotID,
      pod: { kind: 'Pod', namespace: 'mapped', name: 'web-0', uid: 'pod-1' },
      sourceNamespace: 'app',
      uploaderType: 'kopia',
      uploaderSettings: { WriteSparseFiles: 'false' },
      ...spec,
    },
    status: { phase: 'InProgress' },
  };
}

describe('longshore pod-volume restore', () => {
  let snapshotID: string;
  let target: string;
  const waiting = {
    phase: 'Pending',
    initContainerStatuses: [
      { name: 'before', state: { terminated: { exitCode: 0 } } },
      { name: 'restore-wait', state: { running: {} } },
    ],
  };
  beforeEach(async () => {
    putPod();
    api.put('PodVolumeBackup', backup());
    ({ snapshotID } = JSON.parse((await run('PodVolumeBackup')).message) as { snapshotID: string });
    api.repositories.length = 0;
    api.events.length = 0;
    putPod({}, waiting);
    target = join(work, `target-${made++}`);
    fs.mkdirSync(target);
  });

  it('reports as Velero does, leaves its mark, and uses the repository of the source', async () => {
    api.put('PodVolumeRestore', restore(snapshotID));
    const { code, message } = await run('PodVolumeRestore', { path: target });
    expect(code).toBe(0);
    expect(JSON.parse(message)).toEqual({
      target: { byPath: target, volumeMode: 'Filesystem' },
      totalBytes: 5000,
    });
    expect(fs.readdirSync(target).sort()).toEqual(['.velero', 'file']);
    expect(fs.readdirSync(join(target, '.velero'))).toEqual([RESTORE_UID]);
    expect(api.repositories).toEqual([
      expect.stringContaining('velero.io/volume-namespace=app,') as string,
    ]);
    expect(api.events[0]).toMatchObject({ apiVersion: 'velero.io/v1', kind: 'PodVolumeRestore' });
  });

  it.each([
    [
      'no owner',
      { ownerReferences: undefined },
      /PodVolumeRestore velero\/pv-1 has no owner reference: the pod waits/,
    ],
    [
      'an owner whose UID is a path',
      { ownerReferences: [{ uid: '../../etc/x' }] },
      /has an owner reference with a bad UID/,
    ],
  ])('with %s is refused before anything is written', async (_what, metadata, words) => {
    api.put('PodVolumeRestore', restore(snapshotID, {}, metadata));
    const { code, message } = await run('PodVolumeRestore', { path: target });
    expect(code).toBe(1);
    expect(message).toMatch(words);
    expect(message).toMatch(/^Failed to run data path service for PVR pv-1: /);
    expect(fs.readdirSync(target)).toEqual([]);
  });

  it('of restic is refused', async () => {
    api.put('PodVolumeRestore', restore(snapshotID, { uploaderType: 'restic' }));
    const { message } = await run('PodVolumeRestore', { path: target });
    expect(message).toMatch(/for PVR pv-1: restic snapshots are restored by Velero 1.18's own/);
  });

  it.each<[string, () => void, RegExp]>([
    ['is gone', () => api.objects.delete('Pod/web-0'), /pod mapped\/web-0 was deleted/],
    ['was made anew', () => putPod({ uid: 'pod-2' }, waiting), /another pod got its name/],
    ['ended', () => putPod({}, { phase: 'Failed' }), /ended \(it is Failed\)/],
    [
      'no longer waits',
      () =>
        putPod({}, {
          phase: 'Running',
          initContainerStatuses: [
            { name: 'restore-wait', state: { terminated: { exitCode: 0 } } },
          ],
        }), // prettier-ignore
      /stopped waiting \(container restore-wait has ended\)/,
    ],
  ])(
    'has no mark when its pod %s, and writes nothing when it did before',
    async (_what, change, words) => {
      api.put('PodVolumeRestore', restore(snapshotID));
      let asked = 0;
      api.onPod = () => {
        if (++asked === 1) change();
      };
      const meanwhile = await run('PodVolumeRestore', { path: target });
      expect(meanwhile.message).toMatch(
        /^Failed to run data path service for PVR pv-1: Data path for PVR pv-1 failed: pod /,
      );
      expect(meanwhile.message).toMatch(words);
      expect(meanwhile.message).toMatch(/while its volume was being restored; restore it again/);
      expect(fs.readdirSync(target)).toEqual(['file']);
      fs.rmSync(join(target, 'file'));
      expect((await run('PodVolumeRestore', { path: target })).message).toMatch(
        /before its volume could be restored/,
      );
      expect(fs.readdirSync(target)).toEqual([]);
    },
  );

  const mover = (generation: number, pod = 'mover'): object => ({
    'longshore.io/mover': JSON.stringify({
      generation,
      pod,
      lastPod: pod,
      node: 'n',
      namedAt: '2026-01-01T00:00:00Z',
    }),
  });
  const noteOf = (): string | undefined =>
    api.objects.get('PodVolumeRestore/pv-1')?.metadata.annotations?.['longshore.io/restored'];

  it('notes that the data are there, and the mover after it writes no data', async () => {
    api.put('PodVolumeRestore', restore(snapshotID, {}, { annotations: mover(1) }));
    // Somebody else writes in between.
    api.patchRefusals.push(new CodedError('KUBE_CONFLICT', 'it has been modified'));
    expect(await run('PodVolumeRestore', { path: target })).toMatchObject({ code: 0 });
    const note = noteOf() ?? '';
    const root = expect.stringMatching(/^\d+ \d+$/) as string;
    const bootId = expect.stringMatching(/^[0-9a-f-]{36}$/) as string;
    const claimed = { isOfClaim: true, lastingClaim: 'claim' };
    expect(JSON.parse(note)).toEqual({ by: 'mover', bootId, root, ...claimed });
    // The mover dies. The pod takes the mark and continues, before its node has reported that.
    fs.rmSync(join(target, '.velero'), { recursive: true });
    fs.writeFileSync(join(target, 'file'), 'of the application');
    const annotations = { ...mover(3), 'longshore.io/restored': note };
    api.put('PodVolumeRestore', restore(snapshotID, {}, { annotations }));
    expect(await run('PodVolumeRestore', { path: target })).toMatchObject({ code: 0 });
    expect(fs.readFileSync(join(target, 'file'), 'utf8')).toBe('of the application');
    expect(fs.readdirSync(join(target, '.velero'))).toEqual([RESTORE_UID]);
  }, 60_000);

  it('notes no claim that goes with its pod', async () => {
    putPod({}, { phase: 'Pending' });
    const pod = api.objects.get('Pod/web-0') as unknown as Pod;
    pod.spec.volumes = [{ name: 'data', ephemeral: { volumeClaimTemplate: {} } }] as never;
    api.put('PodVolumeRestore', restore(snapshotID, {}, { annotations: mover(1) }));
    expect(await run('PodVolumeRestore', { path: target })).toMatchObject({ code: 0 });
    const note = JSON.parse(noteOf() ?? '{}') as object;
    expect(note).toMatchObject({ isOfClaim: true });
    expect(note).not.toHaveProperty('lastingClaim');
  }, 60_000);

  it.each([
    ['takes the note off', undefined],
    ['fails, and writes nothing, as long as the note cannot be taken off', 'KUBE_FORBIDDEN'],
  ])(
    'of a volume that has lost its data %s before it writes them again',
    async (_what, refusal) => {
      const written = { by: 'mover', bootId: 'of a start before', root: '1 1', isOfClaim: true };
      const note = JSON.stringify({ ...written, lastingClaim: 'claim' });
      const annotations = { ...mover(3), 'longshore.io/restored': note };
      api.put('PodVolumeRestore', restore(snapshotID, {}, { annotations }));
      const found: string[][] = [];
      const patch = api.patch.bind(api);
      api.patch = (resource, ref, body) => {
        if (resource.kind === 'Event') return patch(resource, ref, body);
        found.push(fs.readdirSync(target));
        if (refusal) return Promise.reject(new CodedError(refusal, 'not allowed'));
        return patch(resource, ref, body);
      };
      const end = await run('PodVolumeRestore', { path: target, resourceTimeoutMs: 1500 });
      expect(found[0]).toEqual([]);
      if (refusal) {
        expect(end).toMatchObject({ code: 1 });
        expect(end.message).toMatch(
          /the volume no longer has its data, but what is noted of them could not be taken off PodVolumeRestore velero\/pv-1: .*not allowed/,
        );
        expect(fs.readdirSync(target)).toEqual([]);
        expect(noteOf()).toBe(note);
      } else {
        expect(end).toMatchObject({ code: 0 });
        expect(found).toHaveLength(2);
        expect(JSON.parse(noteOf() ?? '{}')).toMatchObject({ lastingClaim: 'claim' });
        expect(noteOf()).not.toContain('of a start before');
      }
    },
    60_000,
  );

  it('makes no mark once another mover is the one', async () => {
    api.put('PodVolumeRestore', restore(snapshotID, {}, { annotations: mover(1) }));
    // In the midst of the write of the note, before what watches the CR can tell.
    const patch = api.patch.bind(api);
    api.patch = (resource, ref, body) => {
      if (resource.kind === 'Event') return patch(resource, ref, body);
      api.isWatchSilent = true;
      const annotations = mover(2, 'another');
      api.put('PodVolumeRestore', restore(snapshotID, {}, { annotations }));
      return Promise.reject(new CodedError('KUBE_CONFLICT', 'it has been modified'));
    };
    const { code, message } = await run('PodVolumeRestore', { path: target });
    expect({ code, message }).toMatchObject({ code: 1 });
    expect(message).toMatch(/velero\/pv-1 has another data mover by now/);
    expect(fs.readdirSync(join(target, '.velero'))).toEqual([]);
    expect(noteOf()).toBeUndefined();
  });

  it.each([
    [
      'may not note it',
      mover(1),
      0,
      [new CodedError('KUBE_FORBIDDEN', 'it is forbidden: User "longshore" cannot do that')],
    ],
    ['cannot note it', mover(1), 1, [new CodedError('KUBE_INVALID', 'bad')]],
    ["is one of Velero's agent", {}, 0, []],
  ])('that %s', async (_what, annotations, expected, refusals) => {
    api.put('PodVolumeRestore', restore(snapshotID, {}, { annotations }));
    api.patchRefusals.push(...Array.from({ length: 20 }, () => refusals).flat());
    const { code, message } = await run('PodVolumeRestore', {
      path: target,
      resourceTimeoutMs: 60_000,
    });
    expect({ code, message }).toMatchObject({ code: expected });
    expect(fs.readdirSync(join(target, '.velero')).length).toBe(1 - expected);
    if (expected === 1)
      expect(message).toMatch(/could not be noted on PodVolumeRestore velero\/pv-1: bad$/);
    expect(noteOf()).toBeUndefined();
  });

  it("is not done twice where a mover of Velero's agent finished it, which nobody had named", async () => {
    fs.mkdirSync(join(target, '.velero'));
    fs.writeFileSync(join(target, '.velero', RESTORE_UID), '');
    const annotations = { ...mover(1), 'longshore.io/data-mover-restarts': '1' };
    api.put('PodVolumeRestore', restore(snapshotID, {}, { annotations }));
    expect(await run('PodVolumeRestore', { path: target })).toMatchObject({ code: 0 });
    expect(fs.readdirSync(target)).toEqual(['.velero']);
  });

  it('is not done twice where the mover before this one has finished it', async () => {
    fs.mkdirSync(join(target, '.velero'));
    fs.writeFileSync(join(target, '.velero', RESTORE_UID), '');
    api.put('PodVolumeRestore', restore(snapshotID, {}, { annotations: mover(2) }));
    expect(await run('PodVolumeRestore', { path: target })).toMatchObject({ code: 0 });
    expect(fs.readdirSync(target)).toEqual(['.velero']);
    api.put('PodVolumeRestore', restore(snapshotID, {}, { annotations: mover(1) }));
    expect(await run('PodVolumeRestore', { path: target })).toMatchObject({ code: 0 });
    expect(fs.readdirSync(target).sort()).toEqual(['.velero', 'file']);
  });

  it('of a snapshot that is not there has no mark', async () => {
    api.put('PodVolumeRestore', restore('0'.repeat(32)));
    const { code, message } = await run('PodVolumeRestore', { path: target });
    expect(code).toBe(1);
    expect(message).toMatch(/Data path for PVR pv-1 failed: there is no snapshot 0+/);
    expect(fs.readdirSync(target)).toEqual([]);
  });
});
