import { CodedError, SECOND_NS, silentLogger } from '../../../../src/base/index.ts';
import { RestoreArchive, type RestoreVolumeInfo } from '../../../../src/archive/index.ts';
import {
  newOperation,
  OperationMap,
  orderedRecord,
} from '../../../../src/item-operations/index.ts';
import type { Bucket } from '../../../../src/blob/index.ts';
import type { KubeClient, KubeObject, Pod, Resource, Restore } from '../../../../src/kube/index.ts';
import { MADE_BY_ANNOTATION } from '../../../../src/plugin/index.ts';
import { MissingSources } from '../../../../src/server/restores/missing-sources.ts';
import { AfterRunFiles } from '../../../../src/server/restores/after-run-files.ts';
import {
  type AfterRun,
  nothingLeft,
  storeAfterRun,
} from '../../../../src/server/restores/contract.ts';
import type { OpenBucket } from '../../../../src/server/backups/contract.ts';
import {
  RestoreBucket,
  type RestoreBucketOptions,
} from '../../../../src/server/restores/files/restore-bucket.ts';
import { endRestore } from '../../../../src/server/restores/operations/operations-controller.ts';
import { FileWriters } from '../../../../src/server/runs/file-writers.ts';
import { finalizeRestore } from '../../../../src/server/restores/finalize/finalize.ts';
import { RetryTimes } from '../../../../src/server/restores/finalize/retry-times.ts';
import { FollowedHooks } from '../../../../src/server/restores/hooks/followed-hooks.ts';
import { RestoreLocations } from '../../../../src/server/restores/locations.ts';
import { restoreOperationStore } from '../../../../src/server/operations/operation-stores.ts';
import { restoreOperationsStep } from '../../../../src/server/restores/operations/operations-step.ts';
import { type AfterRunStatus, statusOf } from '../../../../src/server/restores/restore-kind.ts';
import {
  AfterRunWorld,
  calm,
  type Outside,
  type Place,
} from '../../operations/support/after-run.ts';
import { refused, RestoreCluster } from '../../../restore/support/cluster.ts';

export const SUBJECT = { kind: 'Restore', name: 'r1', uid: 'u1' } as const;
export const REF = { namespace: 'velero', name: 'r1' };
export const ITEM = { group: '', resource: 'persistentvolumeclaims', namespace: 'app' };
export const CLAIM_ACTION = 'velero.io/csi-pvc-restorer';

export const claimLeft = (name: string, labels: Record<string, string> = { tier: 'gold' }) => ({
  namespace: 'app',
  name,
  backupMethod: 'CSISnapshot',
  reclaimPolicy: 'Retain',
  labels,
});
export const podLeft = (name: string, hooks = ['h']) => ({
  namespace: 'app',
  name,
  uid: `uid-${name}`,
  waitedMs: 0,
  open: hooks.map((hook) => `uid-${name}/spec/${hook}/web/0`),
});

const nothing = { [Symbol.asyncDispose]: () => Promise.resolve() };

/**
 * A Restore after its run, its bucket and its cluster, and the results of its operations and hooks.
 * Tests can start several servers.
 */
export class World extends AfterRunWorld {
  readonly cluster = new RestoreCluster();
  /** Commands of hooks, in the order of their runs. */
  readonly ran: string[] = [];
  /** The BackupStorageLocation exists. */
  hasLocation = true;
  exec: (command: string) => Promise<void> = () => Promise.resolve();
  restore: Restore;

  constructor(
    phase = 'WaitingForPluginOperations',
    spec: Partial<Restore['spec']> = {},
    place: Place = {},
  ) {
    super(place);
    this.restore = {
      apiVersion: 'velero.io/v1',
      kind: 'Restore',
      metadata: {
        ...REF,
        uid: 'u1',
        resourceVersion: '1',
        creationTimestamp: '2026-11-21T01:00:00Z',
      },
      spec: { backupName: 'b1', ...spec },
    };
    this.say({ phase });
    this.cluster.namespaces('app', 'velero').add('backups.velero.io', {
      metadata: { namespace: 'velero', name: 'b1', uid: 'b' },
      spec: { storageLocation: 'default' },
    });
  }

  say(status: object): void {
    this.restore = { ...this.restore, status: { ...this.restore.status, ...status } };
  }

  /** Marks the Restore as run by Longshore. */
  madeHere(): void {
    const { metadata } = this.restore;
    const annotations = { ...metadata.annotations, [MADE_BY_ANNOTATION]: 'longshore' };
    this.restore = { ...this.restore, metadata: { ...metadata, annotations } };
  }

  get status(): AfterRunStatus {
    return statusOf(this.restore);
  }

  get archive(): RestoreArchive {
    return new RestoreArchive(this.files);
  }

  /** Leaves the state of a finished run. */
  async begin(
    operationIds: readonly string[],
    left: Partial<AfterRun> = {},
    volumeInfos: readonly RestoreVolumeInfo[] = [],
  ): Promise<this> {
    const itemOperations = operationIds.map((operationId) => {
      const item = { ...ITEM, name: operationId };
      const begun = { action: CLAIM_ACTION, operationId, item };
      return orderedRecord(newOperation(SUBJECT, begun, this.clock.nowNs()));
    });
    await new RestoreArchive(this.bucket).claim(SUBJECT);
    await this.archive.put('r1', { itemOperations, results: {}, volumeInfos, resourceList: {} });
    await storeAfterRun(this.files, SUBJECT, { ...nothingLeft('u1'), ...left });
    this.say({ restoreItemOperationsAttempted: operationIds.length });
    return this;
  }

  /** A claim, and its volume if it is bound. */
  addClaim(name: string, { isBound = true, volume = {}, claim = {} } = {}): void {
    const pv = `pv-${name}`;
    this.cluster.remove('persistentvolumeclaims', `app/${name}`);
    this.cluster.remove('persistentvolumes', pv);
    this.cluster.add('persistentvolumeclaims', {
      metadata: { namespace: 'app', name, uid: `uid-${name}` },
      spec: { storageClassName: 'fast', ...(isBound && { volumeName: pv }), ...claim },
      status: { phase: isBound ? 'Bound' : 'Pending' },
    });
    if (!isBound) return;
    this.cluster.add('persistentvolumes', {
      metadata: { name: pv, uid: `uid-${pv}`, resourceVersion: '5', labels: { zone: 'a' } },
      spec: { claimRef: { namespace: 'app', name }, persistentVolumeReclaimPolicy: 'Delete' },
      status: { phase: 'Bound' },
      ...volume,
    });
  }

  addPod(name: string, isUp = true): void {
    const status = { name: 'web', ready: true, state: isUp ? { running: {} } : { waiting: {} } };
    this.cluster.remove('pods', `app/${name}`);
    this.cluster.add('pods', {
      metadata: { namespace: 'app', name, uid: `uid-${name}` },
      spec: { containers: [{ name: 'web' }] },
      status: { phase: 'Running', containerStatuses: [status] },
    });
  }

  /** Readers and waits for a Restore in this process end with it. */
  server(scratch: string, outside: Outside = calm, timeouts: { resourceNs?: bigint } = {}) {
    const asker = this.askerOf(outside);
    const client = this.#clientOf(outside);
    const abort = new AbortController();
    const { signal } = abort;
    const assertLeading = (): void => undefined;
    const open = async (): Promise<OpenBucket> => {
      if (!this.hasLocation) throw new CodedError('NO_LOCATION', 'no location default');
      let files: RestoreBucket | undefined;
      const bucket = this.bucketOf(outside, (raw) => (files = this.#filesOf(raw, client)));
      await Promise.resolve();
      return { bucket, ...(files && { files }), ...nothing };
    };
    const buckets = { open };
    const resourceNs = timeouts.resourceNs ?? 600n * SECOND_NS;
    const absences = new MissingSources({
      client,
      clock: this.clock,
      boundNs: resourceNs,
      assertLeading,
    });
    const locations = new RestoreLocations(client, 'velero');
    const writers = new FileWriters(50);
    const files = new AfterRunFiles({ buckets, locations, writers });
    const places = { buckets, locations, writers };
    const stored = { ...places, client, namespace: 'velero', logger: silentLogger };
    const map = new OperationMap({ store: restoreOperationStore(stored), clock: this.clock });
    const hooks = new FollowedHooks({
      lead: {
        client: client as KubeClient,
        logger: silentLogger,
        namespace: 'velero',
        clock: this.clock,
        assertLeading,
        signal,
      },
      files,
      exec: async ({ pod, command }) => {
        const text = `${pod}: ${command.join(' ')}`;
        await outside(() => {
          this.ran.push(text);
        });
        await this.exec(text);
        return { stdout: '', stderr: '' };
      },
      watch: () => ({
        onChange: () => undefined,
        get: ({ namespace, name }) => this.#pod(namespace, name),
        look: ({ namespace, name }) => outside(() => this.#pod(namespace, name)),
        run: () => Promise.resolve(),
      }),
      onOver: () => undefined,
      againMs: 1,
    });
    const common = {
      ...places,
      client,
      map,
      scratch,
      assertLeading,
      signal,
      logger: silentLogger,
      asker,
      absences,
    };
    return {
      map,
      asker,
      signal,
      hooks,
      locations,
      files,
      writers,
      step: () =>
        restoreOperationsStep(this.restore, { ...common, timeoutNsOf: () => 3600n * SECOND_NS }),
      finalize: () =>
        finalizeRestore(REF, {
          ...common,
          files,
          hooks,
          waits: this.#waitsOf(abort),
          resourceTimeoutNs: resourceNs,
          hookTimeoutNs: 14_400n * SECOND_NS,
        }),
      endIt: () => endRestore(this.restore, common),
      kill: () => {
        abort.abort(new Error('killed'));
      },
    };
  }

  #filesOf(raw: Bucket, client: RestoreBucketOptions['client']): RestoreBucket {
    const { name, uid } = SUBJECT;
    const restore = { name, uid };
    return new RestoreBucket(raw, { client, namespace: 'velero', location: 'default', restore });
  }

  /** The files of the restore, in the bucket or in the cluster. */
  get stored(): Bucket {
    return this.bucketOf(calm, (raw) => this.#filesOf(raw, this.#clientOf(calm)));
  }

  readonly #waits = new WeakMap<AbortController, RetryTimes>();
  #waitsOf(of: AbortController): RetryTimes {
    const waits = this.#waits.get(of) ?? new RetryTimes(this.clock);
    this.#waits.set(of, waits);
    return waits;
  }

  #pod(namespace: string, name: string): Pod | undefined {
    return structuredClone(this.cluster.get('pods', `${namespace}/${name}`)) as Pod | undefined;
  }

  #clientOf(outside: Outside) {
    const { clock, requests, cluster } = this;
    const find = (resource: Resource<KubeObject>, ref: { name: string; namespace?: string }) =>
      outside(() => {
        requests.push(`GET ${resource.plural}`);
        if (resource.plural === 'restores') return structuredClone(this.restore);
        const id = ref.namespace === undefined ? ref.name : `${ref.namespace}/${ref.name}`;
        const type =
          resource.group === '' ? resource.plural : `${resource.plural}.${resource.group}`;
        return structuredClone(cluster.get(type, id));
      });
    const patch = (
      resource: Resource<KubeObject>,
      ref: { name: string; namespace?: string },
      change: object,
    ) =>
      outside(async () => {
        requests.push(`PATCH ${resource.plural}`);
        const { metadata, status } = change as Restore;
        if (resource.plural !== 'restores') {
          const id = ref.namespace === undefined ? ref.name : `${ref.namespace}/${ref.name}`;
          const found = cluster.get(resource.plural, id);
          const expected = (metadata as KubeObject['metadata'] | undefined)?.resourceVersion;
          if (expected !== undefined && found?.metadata.resourceVersion !== expected) {
            throw refused('KUBE_CONFLICT', 'somebody has changed it');
          }
          return await cluster.patch(resource, ref, change);
        }
        const { resourceVersion } = metadata;
        const now = this.restore.metadata;
        if (resourceVersion !== undefined && resourceVersion !== now.resourceVersion) {
          throw refused('KUBE_CONFLICT', 'somebody has changed it');
        }
        this.say(status ?? {});
        const annotations = Object.fromEntries(
          Object.entries({ ...now.annotations, ...metadata.annotations }).filter(
            ([, value]) => (value as string | null) !== null,
          ),
        );
        const next = `${Number(now.resourceVersion) + 1}`;
        const changed = { ...now, annotations, resourceVersion: next };
        this.restore = { ...this.restore, metadata: changed };
        return this.restore;
      });
    const list = (
      resource: Resource<KubeObject>,
      { labelSelector }: { labelSelector?: string } = {},
    ) =>
      outside(() => {
        requests.push(`LIST ${resource.plural}`);
        const all = structuredClone(cluster.objects.get(resource.plural) ?? []);
        // Objects of these tests need no labels, except ConfigMaps that keep files of the restore.
        if (resource.plural !== 'configmaps') return all;
        const wanted = labelSelector?.split(',').map((each) => each.split('=')) ?? [];
        return all.filter(({ metadata: { labels } }) =>
          wanted.every(([label = '', value]) => labels === undefined || labels[label] === value),
        );
      });
    const create = (resource: Resource<KubeObject>, object: KubeObject) =>
      outside(() => {
        requests.push(`CREATE ${resource.plural}`);
        return cluster.create(resource, object);
      });
    const remove = (resource: Resource<KubeObject>, { name, namespace }: KubeObject['metadata']) =>
      outside(() => {
        requests.push(`DELETE ${resource.plural} ${name}`);
        cluster.remove(resource.plural, `${namespace ?? ''}/${name}`);
      });
    return { find, patch, list, create, delete: remove, clock } as unknown as Pick<
      KubeClient,
      'find' | 'patch' | 'list' | 'create' | 'delete' | 'clock'
    >;
  }
}
