import * as fs from 'node:fs';
import { afterAll } from 'vitest';
import { BackupArchive, readTarball, RestoreArchive } from '../../../../../src/archive/index.ts';
import { CodedError, silentLogger } from '../../../../../src/base/index.ts';
import type { BackupAction } from '../../../../../src/backup/index.ts';
import type { BackupVolumes } from '../../../../../src/backup-volumes/index.ts';
import {
  archiveStore,
  type OperationAsker,
  OperationMap,
} from '../../../../../src/item-operations/index.ts';
import type { KubeClient } from '../../../../../src/kube/index.ts';
import { ClusterRunner } from '../../../../../src/server/index.ts';
import type { VolumesContext } from '../../../../../src/server/backups/run/cluster-runner.ts';
import { FakeCluster } from '../../../../backup/support/cluster.ts';
import { tempDirectory } from '../../../../support/kopia.ts';
import type { Bucket } from '../../../../../src/blob/index.ts';
import { MemoryBucket } from '../../../../support/memory-bucket.ts';
import { aBackup } from '../../../../support/builders.ts';

export const scratch = tempDirectory('cluster-runner');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

export const BACKUP = aBackup({
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata: { name: 'b1', namespace: 'velero', uid: 'u1', resourceVersion: '1' },
  spec: { includedNamespaces: ['*'], storageLocation: 'default', itemOperationTimeout: '4h0m0s' },
  status: { phase: 'InProgress' },
});

export interface Parts {
  readonly cluster: FakeCluster;
  /** Replaces the bucket in memory. */
  readonly bucket?: Bucket;
  readonly actions?: readonly BackupAction[];
  readonly cancel?: OperationAsker['cancel'];
  readonly client?: object;
  readonly volumes?: (context: VolumesContext) => Partial<BackupVolumes>;
  readonly openVolumes?: (context: VolumesContext) => Promise<BackupVolumes>;
  readonly onEnded?: () => void;
  readonly onUntold?: (text: string) => void;
  readonly directory?: string;
  readonly spec?: object;
  readonly timeoutNsOf?: (action: string) => bigint;
}

/** A server that makes one backup. */
export class Rig {
  readonly bucket = new MemoryBucket();
  readonly #bucket: Bucket;
  readonly canceled: string[] = [];
  readonly abort = new AbortController();
  readonly leaving = new AbortController();
  isLeading = true;
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
    this.#bucket = parts.bucket ?? this.bucket;
  }

  async run() {
    const bucket = this.#bucket;
    const { cluster, actions = [], volumes, client = {}, directory = scratch } = this.#parts;
    const archives = { backups: new BackupArchive(bucket), restores: new RestoreArchive(bucket) };
    const nothing = { [Symbol.asyncDispose]: () => Promise.resolve() };
    const runner = new ClusterRunner({
      client: {
        listPage: cluster.listPage,
        find: cluster.find,
        raw: () => Promise.resolve({}),
        collect: async (resource: never, options: never, take: (item: never) => unknown[]) =>
          (
            await (cluster.listPage(resource, options) as Promise<{ items: never[] }>)
          ).items.flatMap(take),
        ...client,
      } as unknown as KubeClient,
      discovery: await cluster.discovery(),
      buckets: { open: () => Promise.resolve({ bucket, ...nothing }) },
      archiveOf: (opened) => new BackupArchive(opened),
      sessions: {
        open: () =>
          Promise.resolve({
            loadActions: () => Promise.resolve({ actions, blockActions: [] }),
            asker: {
              ask: () => Promise.resolve({ kind: 'unasked', error: 'later', isLasting: false }),
              cancel: async (operation, signal) => {
                await this.#parts.cancel?.(operation, signal);
                this.canceled.push(operation.spec.operationID);
              },
            },
            snapshotter: () => {
              throw new Error('none');
            },
            ...nothing,
          }),
      },
      operations: new OperationMap({ store: archiveStore(() => Promise.resolve(archives)) }),
      openVolumes: (context) =>
        this.#parts.openVolumes?.(context) ??
        Promise.resolve({
          resume: () => undefined,
          nativeSnapshots: [],
          outcome: () =>
            Promise.resolve({
              nativeSnapshots: [],
              podVolumeBackups: [],
              volumeInfos: [],
              csiSnapshots: 0,
            }),
          ...volumes?.(context),
        }),
      directory,
      logger: silentLogger,
      logLevel: 'info',
      logFormat: 'text',
      workers: 2,
      patienceMs: 400,
      ...(this.#parts.timeoutNsOf && { timeoutNsOf: this.#parts.timeoutNsOf }),
    });
    return runner.run({
      backup: { ...BACKUP, spec: { ...BACKUP.spec, ...this.#parts.spec } },
      onProgress: () => Promise.resolve(),
      ...(this.#parts.onEnded && { onEnded: this.#parts.onEnded }),
      ...(this.#parts.onUntold && { onUntold: this.#parts.onUntold }),
      assertLeading: () => {
        if (!this.isLeading) throw new CodedError('LEADERSHIP_LOST', 'another one may lead');
      },
      signal: this.abort.signal,
      leaving: this.leaving.signal,
    });
  }
}

export const configMaps = (count: number): FakeCluster =>
  new FakeCluster()
    .namespaces('a')
    .add('configmaps', ...Array.from({ length: count }, (_, i) => `a/c${i}`));
export const reasonOf = (task: Promise<unknown>): Promise<unknown> =>
  task.then(
    () => undefined,
    (error: unknown) => error,
  );

export async function pathsIn({ bucket }: Rig): Promise<string[]> {
  const archive = await new BackupArchive(bucket).open('b1');
  const entries = await Array.fromAsync(readTarball(archive.read('contents'), 'contents'));
  return entries.map(({ path }) => path).sort();
}
