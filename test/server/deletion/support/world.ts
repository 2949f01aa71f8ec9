import * as fs from 'node:fs';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { expect } from 'vitest';
import {
  BackupArchive,
  type BackupVolumeInfo,
  type NativeSnapshot,
  ScratchFile,
  type signingBy,
  signWith,
  TarballWriter,
} from '../../../../src/archive/index.ts';
import { asError, CodedError, type Logger, silentLogger } from '../../../../src/base/index.ts';
import { BlobNotFoundError, blobId, type Bucket } from '../../../../src/blob/index.ts';
import { ApiServer } from '../../../../src/dev/index.ts';
import {
  type Backup,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  connectToCluster,
  DATA_DOWNLOADS,
  DELETE_BACKUP_REQUESTS,
  Discovery,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  type Resource,
  RESTORES,
  SECRETS,
  VOLUME_SNAPSHOT_CONTENTS,
  type VolumeSnapshotContent,
} from '../../../../src/kube/index.ts';
import type { VolumeSnapshotter } from '../../../../src/plugin/index.ts';
import { DeletionController, DeletionMetrics, FileWriters } from '../../../../src/server/index.ts';
import type { DeleteAction, ForgetSnapshots } from '../../../../src/server/deletion/contract.ts';
import type { DeletionControllerOptions } from '../../../../src/server/deletion/deletion-controller.ts';
import type { DeletionRequest } from '../../../../src/server/deletion/deletion-request.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';
import { callsThrough } from '../../../support/with-calls.ts';

export const VELERO = 'velero';
export const START = '2026-11-21T02:00:00Z';
const FINALIZER = 'snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection';

/** An external call of a server, which may be killed before or after its effect. */
export type Outside = <T>(task: () => Promise<T>, what: string) => Promise<T>;
export const calm: Outside = async (task) => task();

/** The parts of a stored backup. */
export interface Parts {
  readonly items?: readonly (readonly [path: string, item: object])[];
  readonly volumeInfos?: readonly BackupVolumeInfo[];
  readonly volumeSnapshots?: readonly NativeSnapshot[];
  readonly podVolumeBackups?: readonly object[];
  readonly itemOperations?: readonly object[];
}

/** A cluster with bucket, providers, drivers, repositories and any number of servers. */
export class DeletionWorld {
  readonly server: ApiServer;
  readonly client: KubeClient;
  readonly scratch: string;
  readonly bucket = new MemoryBucket();
  /** The signing keys of servers that start later. */
  signing: Awaited<ReturnType<typeof signingBy>>;
  /** Other buckets by location. */
  readonly elsewhere = new Map<string, MemoryBucket>();
  /** IDs of existing snapshots. */
  readonly provider = new Set<string>();
  readonly drivers = new Set<string>();
  readonly repositories = new Map<string, Set<string>>();
  /** Tags of snapshots in repositories, by ID. */
  readonly tags = new Map<string, Readonly<Record<string, string>>>();
  /** All deletions, requests and failures, in order. */
  readonly told: string[] = [];
  actions: DeleteAction[] = [];
  /** Errors by call; each is thrown once. */
  readonly faults = new Map<string, unknown[]>();
  /** VolumeSnapshotLocations. */
  locations: object[] = [
    { metadata: { name: 'l' }, spec: { provider: 'x', config: { region: 'r' } } },
  ];
  isBucketSilent = false;
  /** Whether drivers are missing, so that no content's snapshot is deleted. */
  isDriverGone = false;
  /** IDs of native snapshots for whose deletion the provider has no answer. */
  readonly silent = new Set<string>();
  registry = new Registry();
  readonly #abort = new AbortController();
  readonly #sidecar: Promise<void>;

  private constructor(server: ApiServer, client: KubeClient, scratch: string) {
    this.server = server;
    this.client = client;
    this.scratch = scratch;
    this.#sidecar = this.#runSidecar();
  }

  static async start(scratch: string): Promise<DeletionWorld> {
    const server = await ApiServer.start();
    const kubeconfig = join(scratch, 'kubeconfig');
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    const client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    const world = new DeletionWorld(server, client, scratch);
    for (const name of [VELERO, 'app']) await client.create(NAMESPACES, { metadata: { name } });
    await world.location('default');
    const password = Buffer.from('test password').toString('base64');
    await client.create(SECRETS, {
      metadata: { namespace: VELERO, name: 'velero-repo-credentials' },
      data: { 'repository-password': password },
    });
    return world;
  }

  async location(name: string, spec: object = {}, phase = 'Available'): Promise<void> {
    await this.make(BACKUP_STORAGE_LOCATIONS, name, {
      spec: { provider: 'velero.io/fs', config: { fspath: join(this.scratch, name) }, ...spec },
      status: { phase },
    });
  }

  make(resource: Resource<KubeObject>, name: string, rest: object = {}): Promise<KubeObject> {
    const { metadata = {}, ...more } = rest as { metadata?: object };
    return this.client.create(resource, {
      metadata: { namespace: VELERO, name, ...metadata },
      ...more,
    });
  }

  /** The Backup that the API server returned. */
  async backup(name: string, phase = 'Completed', rest: object = {}): Promise<Backup> {
    const { spec = {}, status = {}, metadata = {} } = rest as Record<string, object>;
    return (await this.make(BACKUPS, name, {
      metadata,
      spec: { storageLocation: 'default', ...spec },
      status: { phase, startTimestamp: START, ...status },
    })) as Backup;
  }

  /** Adds snapshots to the repositories of a namespace. */
  hold(namespace: string, ...ids: string[]): void {
    const held = this.repositories.get(namespace) ?? new Set();
    for (const id of ids) held.add(id);
    this.repositories.set(namespace, held);
  }

  async store(backup: Backup, parts: Parts = {}, as = backup): Promise<void> {
    await using writer = await TarballWriter.begin(this.scratch);
    for (const [path, item] of parts.items ?? []) {
      await writer.add(`resources/${path}.json`, Buffer.from(JSON.stringify(item)));
    }
    await using contents = await writer.finish();
    await using log = await ScratchFile.of(this.scratch, [Buffer.from('x')]);
    await new BackupArchive(this.bucket).put(backup.metadata.name, {
      contents,
      log,
      results: {},
      resourceList: {},
      itemOperations: parts.itemOperations ?? [],
      volumeInfos: parts.volumeInfos ?? [],
      volumeSnapshots: parts.volumeSnapshots ?? [],
      podVolumeBackups: parts.podVolumeBackups ?? [],
      metadata: { ...as, apiVersion: 'velero.io/v1', kind: 'Backup' },
    });
  }

  /** A DataDownload of `longshore restore in-place`; older versions set the Backup as its owner. */
  async restoreInPlace(backup: KubeObject, phase: string, isOwned = false): Promise<void> {
    const { name, uid } = backup.metadata;
    await this.make(DATA_DOWNLOADS, `${name}-${phase.toLowerCase()}`, {
      metadata: isOwned
        ? { ownerReferences: [{ apiVersion: 'velero.io/v1', kind: 'Backup', name, uid }] }
        : { labels: { 'velero.io/backup-name': name, 'velero.io/backup-uid': uid } },
      spec: {
        targetVolume: { namespace: 'shop', pvc: 'data', pv: '' },
        backupStorageLocation: 'default',
        snapshotID: 's',
        sourceNamespace: 'shop',
        operationTimeout: '10m',
        restoreType: '',
      },
      status: { phase },
    });
  }

  /** A backup with one of everything. */
  async rich(name: string): Promise<Backup> {
    const backup = await this.backup(name);
    const { uid } = backup.metadata;
    const labels = { 'velero.io/backup-name': name, 'velero.io/backup-uid': uid };
    await this.store(backup, {
      items: [
        ['configmaps/namespaces/app/c', { metadata: { namespace: 'app', name: 'c' } }],
        [
          'datauploads.velero.io/namespaces/velero/du',
          upload('du', labels, 'app', `${name}-moved`),
        ],
        [
          'volumesnapshotcontents.snapshot.storage.k8s.io/cluster/vsc',
          content('vsc', labels, `${name}-kept`),
        ],
      ],
      volumeSnapshots: [
        {
          spec: { location: 'l', persistentVolumeName: 'pv' },
          status: { phase: 'Completed', providerSnapshotID: `${name}-native` },
        },
      ],
      podVolumeBackups: [
        {
          metadata: { namespace: VELERO, name: `${name}-pvb`, labels },
          spec: { uploaderType: 'kopia', pod: { namespace: 'app', name: 'p' } },
          status: { snapshotID: `${name}-files` },
        },
      ],
    });
    this.provider.add(`${name}-native`);
    this.drivers.add(`${name}-kept`);
    this.hold('app', `${name}-moved`, `${name}-files`);
    this.hold('other', `${name}-noted`);
    await this.make(CONFIG_MAPS, `${name}-info`, {
      metadata: { labels: { ...labels, 'velero.io/data-upload-snapshot-info': 'true' } },
      data: { volumeNamespace: 'other', snapshotID: `${name}-noted`, repositoryType: 'kopia' },
    });
    await this.make(RESTORES, `${name}-restore`, {
      metadata: { finalizers: ['restores.velero.io/external-resources-finalizer'] },
      spec: { backupName: name },
      status: { phase: 'Completed' },
    });
    const key = `restores/${name}-restore/restore-${name}-restore-logs.gz`;
    this.bucket.objects.set(key, Buffer.from('x'));
    this.bucket.objects.set(`backups/${name}/longshore-journal/${uid}/1`, Buffer.from('x'));
    return backup;
  }

  ask(backup: string, metadata: object = {}, name = `${backup}-1`): Promise<KubeObject> {
    return this.make(DELETE_BACKUP_REQUESTS, name, { metadata, spec: { backupName: backup } });
  }

  request(name: string): Promise<DeletionRequest | undefined> {
    return this.client.find(DELETE_BACKUP_REQUESTS, { namespace: VELERO, name });
  }

  /** Waits until a request is processed. */
  async answer(name: string, timeout = 15_000): Promise<readonly string[]> {
    await expect
      .poll(async () => (await this.request(name))?.status?.phase, {
        timeout,
        interval: 20,
      })
      .toBe('Processed');
    return (await this.request(name))?.status?.errors ?? [];
  }

  /** Waits until a backup and all its requests are deleted. */
  async gone(backup: string, timeout = 15_000): Promise<void> {
    const left = async (): Promise<string[]> => {
      const requests = await this.client.list(DELETE_BACKUP_REQUESTS, { namespace: VELERO });
      const mine = (requests as DeletionRequest[]).filter(
        ({ spec }) => spec?.backupName === backup,
      );
      const found = await this.client.find(BACKUPS, { namespace: VELERO, name: backup });
      const told = mine.flatMap(({ metadata, status }) => [
        metadata.name,
        ...(status?.errors ?? []),
      ]);
      return [...told, ...(found ? [found.metadata.name] : [])];
    };
    await expect.poll(left, { timeout, interval: 20 }).toEqual([]);
  }

  files(folder: string): string[] {
    return [...this.bucket.objects.keys()].filter((key) => key.startsWith(folder));
  }

  fail(what: string, ...errors: unknown[]): void {
    this.faults.set(what, errors);
  }

  #fault(what: string): void {
    const error = this.faults.get(what)?.shift();
    if (error !== undefined) throw asError(error);
  }

  /** Runs until it is stopped. */
  run({
    outside = calm,
    logger = silentLogger,
    ...more
  }: Partial<DeletionControllerOptions> & {
    outside?: Outside;
    logger?: Logger;
  } = {}): () => Promise<void> {
    this.registry = new Registry();
    const abort = new AbortController();
    const controller = new DeletionController({
      client: this.#mortal(outside),
      logger,
      namespace: VELERO,
      host: 'h',
      isMadeHere: true,
      patienceMs: 200,
      runningMs: 20,
      endingMs: 200,
      driverMs: 2000,
      directory: this.scratch,
      metrics: new DeletionMetrics(this.registry),
      buckets: {
        open: (location, signal) => {
          this.#fault('bucket');
          if (this.isBucketSilent && location === 'default') return silence(signal);
          const bucket = this.elsewhere.get(location) ?? this.#bucketOf(outside);
          if (this.signing) signWith(bucket, { signing: this.signing, isRequired: false });
          return Promise.resolve({
            bucket,
            [Symbol.asyncDispose]: () => Promise.resolve(),
          });
        },
      },
      sessions: { open: () => Promise.resolve(this.#session(outside)) },
      discovery: () => Discovery.open(this.client),
      snapshotLocations: (names) =>
        Promise.resolve(
          this.locations.filter((each) =>
            names.includes((each as KubeObject).metadata.name),
          ) as never,
        ),
      forget: this.#forget(outside),
      providerMs: 2000,
      writers: new FileWriters(),
      defaultCredentials: () => undefined,
      ...more,
    });
    const running = controller.run(abort.signal, () => {
      abort.signal.throwIfAborted();
    });
    return async () => {
      abort.abort(new CodedError('LEADERSHIP_LOST', 'the test is over'));
      await running;
    };
  }

  #forget(outside: Outside): ForgetSnapshots {
    return ({ location }, ids, { mayForget }) =>
      outside(async () => {
        this.#fault('forget');
        const [, namespace = ''] = /kopia\/([^/?]+)/.exec(location) ?? [];
        const held = this.repositories.get(namespace);
        if (!held) throw new CodedError('STORAGE_NOT_FOUND', 'there is none');
        const forgotten: string[] = [];
        const missing = ids.filter((id) => !held.has(id));
        for (const id of ids) {
          if (!held.has(id) || !(await mayForget(id, this.tags.get(id) ?? {}))) continue;
          held.delete(id);
          forgotten.push(id);
        }
        for (const id of [...forgotten].sort()) this.told.push(`forget ${id}`);
        return { forgotten, missing };
      }, 'forget');
  }

  #session(outside: Outside) {
    const deleteSnapshot = (id: string): Promise<void> =>
      outside(() => {
        this.#fault(`snapshot ${id}`);
        if (this.silent.has(id)) return new Promise(() => undefined);
        if (!this.provider.delete(id)) {
          throw new CodedError('PLUGIN_REFUSED', `snapshot ${id} not found`);
        }
        this.told.push(`provider ${id}`);
        return Promise.resolve();
      }, 'provider');
    return {
      loadActions: () => Promise.resolve({ actions: [], blockActions: [] }),
      loadDeleteActions: () => {
        this.#fault('actions');
        return Promise.resolve(
          this.actions.map((action) => ({
            ...action,
            execute: (...parts: Parameters<DeleteAction['execute']>) =>
              outside(() => action.execute(...parts), `action ${action.name}`),
          })),
        );
      },
      asker: {
        ask: () => Promise.reject(new Error('nobody asks')),
        cancel: () => Promise.reject(new Error('nobody cancels')),
      },
      snapshotter: (provider: string) => {
        if (provider === 'missing')
          throw new CodedError('NO_SUCH_PLUGIN', 'there is no plugin missing');
        return { deleteSnapshot } as unknown as VolumeSnapshotter;
      },
      [Symbol.asyncDispose]: () => Promise.resolve(),
    };
  }

  #bucketOf(outside: Outside): Bucket {
    const { bucket } = this;
    return Object.assign(Object.create(bucket) as MemoryBucket, {
      delete: (key: string) =>
        outside(async () => {
          this.#fault(`delete ${key.split('/').at(-1) ?? ''}`);
          if (bucket.objects.has(key)) this.told.push(`file ${key}`);
          await bucket.delete(key);
        }, `delete ${key}`),
      get: (key: string) => {
        this.#fault(`get ${key.split('/').at(-1) ?? ''}`);
        if (!bucket.objects.has(key)) throw new BlobNotFoundError(blobId(key));
        return bucket.get(key);
      },
    });
  }

  #mortal(outside: Outside): KubeClient {
    return callsThrough(this.client, (name, [resource], go) => {
      if (!['delete', 'create', 'patch'].includes(name)) return go();
      const { plural } = resource as Resource<KubeObject>;
      return outside(async () => {
        this.#fault(`${name} ${plural}`);
        const result = await (go() as Promise<unknown>);
        if (name === 'delete' && plural !== 'volumesnapshotcontents') {
          this.told.push(`delete ${plural}`);
        }
        return result;
      }, `${name} ${plural}`);
    });
  }

  /**
   * Simulates the snapshotter: sets the handle of a content. For a deleted content it deletes the
   * snapshot in the status, then the content.
   */
  async #runSidecar(): Promise<void> {
    const { signal } = this.#abort;
    const ref = { signal };
    while (!signal.aborted) {
      try {
        for await (const { object } of this.client.watch(VOLUME_SNAPSHOT_CONTENTS, ref)) {
          const { metadata, spec, status } = object as VolumeSnapshotContent;
          if (this.isDriverGone || !metadata.finalizers?.includes(FINALIZER)) continue;
          const { snapshotHandle } = spec.source;
          if (metadata.deletionTimestamp === undefined) {
            if (status?.snapshotHandle !== undefined) continue;
            const told = { status: { snapshotHandle } };
            await this.client
              .patch(VOLUME_SNAPSHOT_CONTENTS, metadata, told, { subresource: 'status' })
              .catch(() => undefined);
            continue;
          }
          const handle = status?.snapshotHandle ?? '';
          if (this.drivers.delete(handle)) this.told.push(`driver ${handle}`);
          await this.client
            .patch(VOLUME_SNAPSHOT_CONTENTS, metadata, { metadata: { finalizers: [] } })
            .catch(() => undefined);
        }
      } catch {
        // The next watch starts with the existing objects.
      }
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#abort.abort();
    await this.#sidecar;
    this.client.close();
    await this.server[Symbol.asyncDispose]();
  }
}

export const upload = (
  name: string,
  labels: object,
  namespace: string,
  id: string,
  mover = 'longshore',
) => ({
  metadata: { namespace: VELERO, name, labels },
  spec: {
    backupStorageLocation: 'default',
    operationTimeout: '10m0s',
    snapshotType: 'CSI',
    datamover: mover,
    sourceNamespace: namespace,
    sourcePVC: 'pvc',
  },
  status: { phase: 'Completed', snapshotID: id },
});

/** Bound to a snapshot in the cluster. */
export const boundContent = (name: string, uid: string): VolumeSnapshotContent =>
  ({
    metadata: { name },
    spec: { driver: 'd', deletionPolicy: 'Retain', source: {}, volumeSnapshotRef: { uid } },
  }) as VolumeSnapshotContent;

export const content = (name: string, labels: object, handle: string, status: object = {}) => ({
  metadata: { name, labels },
  spec: { driver: 'd', deletionPolicy: 'Retain', source: {}, volumeSnapshotRef: {} },
  status: { snapshotHandle: handle, ...status },
});

const silence = (signal: AbortSignal): Promise<never> =>
  new Promise((_resolve, reject) => {
    signal.addEventListener('abort', () => {
      reject(signal.reason as Error);
    });
  });
