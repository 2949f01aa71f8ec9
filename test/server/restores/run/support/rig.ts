import * as fs from 'node:fs';
import { afterAll } from 'vitest';
import { BackupArchive, bucketOf, RestoreArchive } from '../../../../../src/archive/index.ts';
import { CodedError, silentLogger } from '../../../../../src/base/index.ts';
import type { ExecQuestion } from '../../../../../src/backup/index.ts';
import type { Bucket } from '../../../../../src/blob/index.ts';
import {
  archiveStore,
  type OperationAsker,
  OperationMap,
} from '../../../../../src/item-operations/index.ts';
import type { KubeClient, Pod, Restore } from '../../../../../src/kube/index.ts';
import type { RestoreAction } from '../../../../../src/restore/index.ts';
import { RestoreBucket } from '../../../../../src/server/restores/files/restore-bucket.ts';
import { ClusterRestoreRunner } from '../../../../../src/server/restores/run/restore-runner.ts';
import { parsePolicyConfigMap } from '../../../../../src/volume-policy/index.ts';
import { RestoreCluster } from '../../../../restore/support/cluster.ts';
import {
  type BackupToPut,
  putBackup,
  type StoredItem,
} from '../../../../restore/support/backup.ts';
import { tempDirectory } from '../../../../support/kopia.ts';
import { MemoryBucket } from '../../../../support/memory-bucket.ts';
import { aRestore } from '../../../../support/builders.ts';

export const scratch = tempDirectory('restore-runner');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

export const RESTORE = aRestore({
  apiVersion: 'velero.io/v1',
  kind: 'Restore',
  metadata: {
    name: 'r1',
    namespace: 'velero',
    uid: 'u1',
    resourceVersion: '1',
    creationTimestamp: '2026-11-26T11:59:00Z',
  },
  spec: { backupName: 'b1', itemOperationTimeout: '4h0m0s' },
  status: { phase: 'InProgress' },
});

/** Puts a backup into a bucket as a server does. */
export const storeBackup = (
  bucket: Bucket,
  items: readonly StoredItem[],
  more: Omit<BackupToPut, 'directory'> = {},
): Promise<void> => putBackup(bucket, items, { ...more, directory: scratch });

export interface Parts {
  readonly cluster: RestoreCluster;
  readonly bucket?: Bucket;
  /** The mode of the location. */
  readonly mode?: { readonly isWriteOnce: boolean };
  readonly actions?: readonly RestoreAction[];
  readonly ask?: OperationAsker['ask'];
  readonly cancel?: OperationAsker['cancel'];
  readonly exec?: (question: ExecQuestion) => Promise<{ stdout: string; stderr: string }>;
  /** Wraps all external calls of the server. `what`: the name of the call. */
  readonly outside?: <T>(task: () => Promise<T> | T, what: string) => Promise<T>;
  readonly spec?: object;
  readonly hasAllVersions?: boolean;
  readonly assertLeading?: () => void;
  /** The API server's time. */
  readonly now?: string;
}

/** Every pod is up as soon as it exists. */
function podWatch(cluster: RestoreCluster) {
  const upNow = (pod: Pod): Pod => ({
    ...pod,
    status: {
      phase: 'Running',
      containerStatuses: pod.spec.containers.map(({ name }) => ({
        name,
        ready: true,
        state: { running: {} },
      })),
    },
  });
  const get = (ref: { namespace: string; name: string }): Pod | undefined => {
    const pod = cluster.get('pods', `${ref.namespace}/${ref.name}`) as Pod | undefined;
    return pod && upNow(pod);
  };
  return {
    get,
    onChange: () => undefined,
    look: (ref: Parameters<typeof get>[0]) => Promise.resolve(get(ref)),
    run: () => Promise.resolve(),
  };
}

/** A server that makes one restore. */
export class Rig {
  readonly #inner: Bucket;
  readonly #client: KubeClient;
  readonly canceled: string[] = [];
  readonly progress: object[] = [];
  readonly untold: string[] = [];
  isUnpublished = false;
  readonly abort = new AbortController();
  readonly leaving = new AbortController();
  readonly operations: OperationMap;
  readonly runner: Promise<ClusterRestoreRunner>;
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
    this.#inner = parts.bucket ?? new MemoryBucket();
    if (!parts.cluster.get('namespaces', 'velero')) parts.cluster.namespaces('velero');
    this.#client = this.#clientOf(parts);
    const archives = () => ({
      backups: new BackupArchive(this.bucket),
      restores: new RestoreArchive(this.bucket),
    });
    this.operations = new OperationMap({ store: archiveStore(() => Promise.resolve(archives())) });
    this.runner = this.#open();
  }

  /** The bucket that a server opens for this restore. */
  #files(): RestoreBucket {
    const { name, uid } = RESTORE.metadata;
    return new RestoreBucket(this.#inner, {
      client: this.#client,
      namespace: 'velero',
      location: 'default',
      restore: { name, uid },
    });
  }

  #bucketOf(files: Bucket): Bucket {
    return bucketOf(files, this.#parts.mode ?? { isWriteOnce: false });
  }

  get bucket(): Bucket {
    return this.#bucketOf(this.#files());
  }

  #clientOf({ cluster, exec }: Parts): KubeClient {
    const outside = <T>(task: () => Promise<T> | T, what: string): Promise<T> =>
      this.#parts.outside?.(task, what) ?? Promise.resolve(task());
    const named = (verb: string, { plural }: { plural: string }, object: object): string => {
      const { metadata, ...ref } = object as { metadata?: object };
      const { namespace = '', name } = { ...ref, ...metadata } as Record<string, string>;
      return `${verb} ${plural} ${namespace}/${name ?? ''}`;
    };
    const list = async (resource: never, options: never): Promise<unknown[]> =>
      (await (cluster.listPage(resource, options) as Promise<{ items: unknown[] }>)).items;
    const { now = '2026-11-26T12:00:00Z' } = this.#parts;
    return {
      clock: { nowNs: () => BigInt(Date.parse(now)) * 1_000_000n },
      listPage: cluster.listPage,
      collect: async (resource: never, options: never, take: (item: unknown) => unknown[]) =>
        (await list(resource, options)).flatMap(take),
      list,
      raw: () => Promise.resolve({}),
      find: (...given: Parameters<typeof cluster.find>) =>
        outside(
          () => cluster.find(...given) as Promise<unknown>,
          named('find', given[0], given[1]),
        ),
      create: (...given: Parameters<typeof cluster.create>) =>
        outside(
          () => cluster.create(...given) as Promise<unknown>,
          named('create', given[0], given[1]),
        ),
      patch: (...given: Parameters<typeof cluster.patch>) =>
        outside(
          () => cluster.patch(...given) as Promise<unknown>,
          named('patch', given[0], given[1]),
        ),
      get: async (...given: Parameters<typeof cluster.find>) => {
        const found = await (cluster.find(...given) as Promise<unknown>);
        if (found === undefined) throw new CodedError('KUBE_NOT_FOUND', `no ${given[1].name}`);
        return found;
      },
      exec: (question: ExecQuestion) =>
        outside(
          () => exec?.(question) ?? Promise.resolve({ stdout: '', stderr: '' }),
          `exec ${question.namespace}/${question.pod} ${question.command.join(' ')}`,
        ),
      delete: (resource: { plural: string }, ref: { namespace: string; name: string }) =>
        outside(
          () => {
            cluster.remove(resource.plural, `${ref.namespace}/${ref.name}`);
            return true;
          },
          named('delete', resource, ref),
        ),
    } as unknown as KubeClient;
  }

  async #open(): Promise<ClusterRestoreRunner> {
    const { cluster, actions = [] } = this.#parts;
    const nothing = { [Symbol.asyncDispose]: () => Promise.resolve() };
    return new ClusterRestoreRunner({
      client: this.#client,
      discovery: (await cluster.resources()) as never,
      buckets: {
        open: () => {
          const files = this.#files();
          return Promise.resolve({ bucket: this.#bucketOf(files), files, ...nothing });
        },
      },
      archiveOf: (opened) => new BackupArchive(opened),
      sessions: {
        open: () =>
          Promise.resolve({
            loadActions: () => Promise.resolve(actions),
            asker: {
              ask:
                this.#parts.ask ??
                (() => Promise.resolve({ kind: 'unasked', error: 'later', isLasting: false })),
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
      operations: this.operations,
      snapshotLocations: () => Promise.resolve([]),
      directory: scratch,
      readPolicies: parsePolicyConfigMap,
      hasAllVersions: this.#parts.hasAllVersions === true,
      helper: { image: 'registry/longshore:v1', tag: 'v1' },
      terminatingMs: 1000,
      resourceTimeoutMs: 1000,
      pollMs: 5,
      patienceMs: 400,
      logger: silentLogger,
      logLevel: 'info',
      logFormat: 'text',
      podWatch: podWatch(cluster),
      journalLimits: { segmentBytes: 2000, segmentMs: 5 },
    });
  }

  get restore(): Restore {
    return { ...RESTORE, spec: { ...RESTORE.spec, ...this.#parts.spec } };
  }

  async run() {
    return (await this.runner).run({
      restore: this.restore,
      location: 'default',
      onProgress: (progress) => {
        this.progress.push(progress);
        return Promise.resolve();
      },
      onUntold: (text) => this.untold.push(text),
      onUnpublished: () => (this.isUnpublished = true),
      assertLeading: this.#parts.assertLeading ?? (() => undefined),
      signal: this.abort.signal,
      leaving: this.leaving.signal,
    });
  }

  get archive(): RestoreArchive {
    return new RestoreArchive(this.bucket);
  }

  async log(): Promise<string> {
    const pieces = await Array.fromAsync(this.archive.readLog('r1'));
    return Buffer.concat(pieces).toString();
  }
}

export const reasonOf = (task: Promise<unknown>): Promise<unknown> =>
  task.then(
    () => undefined,
    (error: unknown) => error,
  );
