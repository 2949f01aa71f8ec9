import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { BackupArchive, type Results } from '../../../../src/archive/index.ts';
import { CodedError, silentLogger } from '../../../../src/base/index.ts';
import { inPlaceHindrance } from '../../../../src/exposer/index.ts';
import { identityOfStored } from '../../../../src/item-operations/index.ts';
import type { KubeClient, KubeObject } from '../../../../src/kube/index.ts';
import { openActions, pluginsFor } from '../../../../src/plugin/index.ts';
import { rehearseRestore, type RestoreAction } from '../../../../src/restore/index.ts';
import { asRestoreAction } from '../../../../src/server/restores/run/host-sessions.ts';
import { RehearsedRun } from '../../../../src/server/restores/run/rehearsed-run.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';
import { stored, type StoredItem } from '../../../restore/support/backup.ts';
import { RestoreCluster } from '../../../restore/support/cluster.ts';
import { Rig, scratch, storeBackup } from './support/rig.ts';

// A dry run of a restore with volumes reports the same as the server's run: generated backups and
// clusters.

const claim = fc.record({
  namespace: fc.constantFrom('app', 'db'),
  name: fc.constantFrom('x', 'y'),
  /** The form of its data in the backup. */
  data: fc.constantFrom('moved', 'moved', 'kept', 'files', 'none'),
  /** The DataUpload is in the backup, missing, or of another backup. */
  upload: fc.constantFrom('here', 'here', 'here', 'missing', 'other'),
  /** The VolumeSnapshot of kept data is in the backup. */
  hasSnapshot: fc.boolean(),
  hasInfo: fc.boolean(),
  hasVolume: fc.boolean(),
  mover: fc.constantFrom('velero', 'velero', 'somebody'),
  existing: fc.constantFrom('no', 'same', 'same', 'other', 'small', 'pending', 'leaving', 'used'),
  /** The backup has a pod that uses the claim. */
  pod: fc.constantFrom('no', 'yes', 'over'),
  isPodThere: fc.boolean(),
  /** The pod belongs to a Job, which is in the backup, had ended there, or is in the cluster. */
  job: fc.constantFrom('no', 'no', 'backup', 'over', 'cluster'),
});
const given = fc.record({
  claims: fc.uniqueArray(claim, {
    minLength: 1,
    maxLength: 3,
    selector: ({ namespace, name }) => `${namespace}/${name}`,
  }),
  hasInfos: fc.boolean(),
  hasAgent: fc.boolean(),
  spec: fc.record(
    {
      existingVolumeDataPolicy: fc.constantFrom('none', 'full', 'full', 'incremental'),
      existingResourcePolicy: fc.constantFrom('none', 'update'),
      restorePVs: fc.constantFrom(true, false),
      namespaceMapping: fc.constantFrom({ app: 'copy' }, { app: 'db' }),
      uploaderConfig: fc.constantFrom({ deleteExtraFiles: true }),
      includedResources: fc.constantFrom(['persistentvolumeclaims', 'datauploads'], ['*']),
    },
    { requiredKeys: [] },
  ),
});
type Given = typeof given extends fc.Arbitrary<infer T> ? T : never;
type Claim = Given['claims'][number];

type Place = Omit<Claim, 'namespace'> & { readonly namespace: string };

const GIB = 1 << 30;
const LABELS = { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': 'backup-uid' };
const SNAPSHOTS = 'snapshot.storage.k8s.io';
const OWN = ['datauploads', 'datadownloads', 'podvolumerestores', 'backuprepositories'];
const idOf = ({ namespace, name }: Pick<Claim, 'namespace' | 'name'>): string =>
  `${namespace}-${name}`;

const volumeOf = (each: Claim, handle = idOf(each)): StoredItem =>
  stored('persistentvolumes', `pv-${idOf(each)}`, {
    spec: {
      capacity: { storage: '1Gi' },
      accessModes: ['ReadWriteOnce'],
      csi: { driver: 'csi.example.com', volumeHandle: handle },
      persistentVolumeReclaimPolicy: 'Delete',
      claimRef: { namespace: each.namespace, name: each.name },
    },
  });

const claimSpec = (each: Claim, volumeName = `pv-${idOf(each)}`): object => ({
  volumeName,
  accessModes: ['ReadWriteOnce'],
  resources: { requests: { storage: '1Gi' } },
});

const podOf = (
  { job, ...each }: Pick<Place, 'namespace' | 'name' | 'job'>,
  status: object,
): StoredItem =>
  stored('pods', `${each.namespace}/pod-${each.name}`, {
    metadata: {
      ownerReferences:
        job === 'no'
          ? []
          : [{ apiVersion: 'batch/v1', kind: 'Job', name: `job-${each.name}`, controller: true }],
    },
    spec: {
      containers: [{ name: 'c', image: 'i' }],
      volumes: [{ name: 'v', persistentVolumeClaim: { claimName: each.name } }],
    },
    status,
  });

const jobOf = ({ job, ...each }: Pick<Place, 'namespace' | 'name' | 'job'>): StoredItem =>
  stored('jobs.batch', `${each.namespace}/job-${each.name}`, {
    spec: {
      selector: { matchLabels: { 'controller-uid': 'old' } },
      template: { metadata: { labels: { 'controller-uid': 'old' } }, spec: { containers: [] } },
    },
    status: job === 'over' ? { completionTime: '2025-01-01T00:00:00Z' } : {},
  });

function snapshotsOf(each: Claim): StoredItem[] {
  const id = `${each.namespace}/snap-${idOf(each)}`;
  const content = `content-${idOf(each)}`;
  const snapshot = stored(`volumesnapshots.${SNAPSHOTS}`, id, {
    spec: { source: { persistentVolumeClaimName: each.name } },
    status: { boundVolumeSnapshotContentName: content },
  });
  const made = stored(`volumesnapshotcontents.${SNAPSHOTS}`, content, {
    spec: {
      driver: 'csi.example.com',
      volumeSnapshotRef: { namespace: each.namespace, name: `snap-${idOf(each)}` },
    },
    status: { snapshotHandle: `handle-${content}` },
  });
  for (const { object } of [snapshot, made]) {
    const kind = object === made.object ? 'VolumeSnapshotContent' : 'VolumeSnapshot';
    Object.assign(object, { apiVersion: `${SNAPSHOTS}/v1`, kind });
  }
  return [snapshot, made];
}

function itemsOf({ claims }: Given): StoredItem[] {
  const namespaces = new Set(claims.map(({ namespace }) => namespace));
  return [
    ...[...namespaces].map((name) => stored('namespaces', name, { status: { phase: 'Active' } })),
    ...claims.flatMap((each) => {
      const { namespace, name, data, upload, hasSnapshot, hasVolume, mover, pod, job } = each;
      const annotations = {
        moved: { 'velero.io/data-upload-name': `velero/du-${idOf(each)}` },
        kept: { 'velero.io/volume-snapshot-name': `snap-${idOf(each)}` },
        files: {},
        none: {},
      }[data];
      const way = { moved: 'moved', kept: 'csi', files: undefined, none: undefined }[data];
      const marks = { ...annotations, ...(way && { 'longshore.io/snapshot-way': way }) };
      const pvc = stored('persistentvolumeclaims', `${namespace}/${name}`, {
        metadata: { annotations: marks },
        spec: claimSpec(each),
      });
      const source = upload === 'other' ? { 'velero.io/backup-name': 'b0' } : LABELS;
      const isUploaded = data === 'moved' && upload !== 'missing';
      const uploaded = stored('datauploads.velero.io', `velero/du-${idOf(each)}`, {
        metadata: { labels: source },
        spec: { sourceNamespace: namespace, sourcePVC: name, datamover: mover },
        status: { phase: 'Completed', snapshotID: 's', progress: { totalBytes: GIB } },
      });
      return [
        pvc,
        ...(hasVolume ? [volumeOf(each)] : []),
        ...(isUploaded ? [uploaded] : []),
        ...(data === 'kept' && hasSnapshot ? snapshotsOf(each) : []),
        ...(job === 'backup' || job === 'over' ? [jobOf(each)] : []),
        ...(pod === 'no' ? [] : [podOf(each, pod === 'over' ? { phase: 'Succeeded' } : {})]),
      ];
    }),
  ];
}

const infoOf = (each: Claim): object => {
  const place = { pvName: `pv-${idOf(each)}`, pvcName: each.name, pvcNamespace: each.namespace };
  const moved = { dataMover: each.mover, snapshotHandle: 's', operationID: 'o', size: GIB };
  const more = {
    moved: {
      backupMethod: 'CSISnapshot',
      snapshotDataMoved: true,
      snapshotDataMovementInfo: moved,
    },
    kept: { backupMethod: 'CSISnapshot', csiSnapshotInfo: { snapshotHandle: 'h' } },
    files: { backupMethod: 'PodVolumeBackup', pvbInfo: { snapshotHandle: 's' } },
    none: { skipped: true, skippedReason: 'a policy' },
  }[each.data];
  return { ...place, result: 'succeeded', ...more };
};

const fileBackupOf = (each: Claim): KubeObject =>
  ({
    apiVersion: 'velero.io/v1',
    kind: 'PodVolumeBackup',
    metadata: {
      namespace: 'velero',
      name: `pvb-${idOf(each)}`,
      labels: LABELS,
      annotations: { 'velero.io/pvc-name': each.name },
    },
    spec: {
      pod: { namespace: each.namespace, name: `pod-${each.name}` },
      volume: 'v',
      uploaderType: 'kopia',
      node: 'n',
      backupStorageLocation: 'default',
    },
    status: { phase: 'Completed', snapshotID: 's' },
  }) as never;

function clusterOf({ claims, hasAgent, spec }: Given): RestoreCluster {
  const cluster = new RestoreCluster();
  cluster.versions['velero.io'] = 'v2alpha1';
  cluster.groups = {
    ...cluster.groups,
    'velero.io': OWN.map((plural) => ({ plural, kind: plural })),
    [SNAPSHOTS]: [
      { plural: 'volumesnapshots', kind: 'VolumeSnapshot' },
      { plural: 'volumesnapshotcontents', kind: 'VolumeSnapshotContent', namespaced: false },
      { plural: 'volumesnapshotclasses', kind: 'VolumeSnapshotClass', namespaced: false },
    ],
  };
  cluster.namespaces('velero', 'db', 'copy');
  const backup = { metadata: { namespace: 'velero', name: 'b1', uid: 'backup-uid' }, spec: {} };
  cluster.add('backups.velero.io', backup);
  if (hasAgent) {
    const labels = { role: 'node-agent' };
    cluster.add('pods', { metadata: { namespace: 'velero', name: 'agent', labels } });
  }
  for (const namespace of ['app', 'db', 'copy']) {
    const labels = {
      'velero.io/volume-namespace': namespace,
      'velero.io/storage-location': 'default',
      'velero.io/repository-type': 'kopia',
    };
    const metadata = { namespace: 'velero', name: `repository-${namespace}`, labels };
    cluster.add('backuprepositories.velero.io', { metadata, status: { phase: 'Ready' } });
  }
  const mapping = (spec as { namespaceMapping?: Record<string, string> }).namespaceMapping ?? {};
  for (const each of claims) {
    const namespace = mapping[each.namespace] ?? each.namespace;
    if (!cluster.get('namespaces', namespace)) continue;
    putExisting(cluster, { ...each, namespace }, each);
    const job = `${namespace}/job-${each.name}`;
    if (each.job === 'cluster' && !cluster.get('jobs.batch', job)) {
      cluster.add('jobs.batch', jobOf({ ...each, namespace }).object);
    }
  }
  return cluster;
}

/** `place`: in the cluster. */
function putExisting(cluster: RestoreCluster, place: Place, each: Claim): void {
  const { namespace, name, existing } = place;
  const id = `${namespace}/${name}`;
  if (existing === 'no' || cluster.get('persistentvolumeclaims', id)) return;
  const volumeName = existing === 'other' ? `new-${idOf(each)}` : `pv-${idOf(each)}`;
  const { object } = stored('persistentvolumeclaims', id, {
    metadata: {
      uid: `now-${id}`,
      ...(existing === 'leaving' && { deletionTimestamp: '2026-11-26T11:00:00Z' }),
    },
    spec: claimSpec(each, volumeName),
  });
  const phase = existing === 'pending' ? 'Pending' : 'Bound';
  const capacity = { storage: existing === 'small' ? '1Mi' : '1Gi' };
  cluster.add('persistentvolumeclaims', { ...object, status: { phase, capacity } });
  if (!cluster.get('persistentvolumes', volumeName)) {
    const { object: pv } = volumeOf(each);
    const claimRef = { namespace, name, uid: `now-${id}` };
    cluster.add('persistentvolumes', {
      ...pv,
      metadata: { ...pv.metadata, name: volumeName },
      spec: { ...(pv as unknown as { spec: object }).spec, claimRef },
      status: { phase: 'Bound' },
    });
  }
  const { object: pod } = podOf(place, {});
  if (existing === 'used') {
    cluster.add('pods', { ...pod, metadata: { ...pod.metadata, name: `user-${name}` } });
  } else if (each.isPodThere && !cluster.get('pods', `${namespace}/${pod.metadata.name}`)) {
    cluster.add('pods', { ...pod, status: { phase: 'Running' } });
  }
}

/** A client of the cluster. In a rehearsal, each change is a dry run. */
function clientOf(cluster: RestoreCluster, isRehearsal = false): KubeClient {
  const change = async (options: unknown, ask: () => Promise<unknown>): Promise<unknown> => {
    if (!isRehearsal) return ask();
    const { isDryRun } = (options ?? {}) as { isDryRun?: boolean };
    expect(isDryRun, 'a request that is no dry run').toBe(true);
    const before = new Map([...cluster.objects].map(([type, list]) => [type, [...list]]));
    try {
      return await ask();
    } finally {
      cluster.objects.clear();
      for (const [type, list] of before) cluster.objects.set(type, list);
    }
  };
  const find = cluster.find as (...args: never[]) => Promise<KubeObject | undefined>;
  return {
    find,
    listPage: cluster.listPage,
    collect: cluster.collect,
    list: (resource: never, options: never) => cluster.collect(resource, options, (each) => [each]),
    get: async (resource: never, ref: { name: string }) => {
      const found = await find(resource, ref as never);
      if (!found) throw new CodedError('KUBE_NOT_FOUND', `no ${ref.name}`);
      return found;
    },
    create: (resource: never, object: object, options: unknown) =>
      change(options, () => cluster.create(resource, object)),
    patch: (resource: never, ref: never, patch: object, options: never) =>
      change(options, () => cluster.patch(resource, ref, patch, options)),
    delete: () => Promise.resolve(true),
  } as unknown as KubeClient;
}

async function actionsOf(client: KubeClient): Promise<RestoreAction[]> {
  const own = openActions({
    client,
    logger: silentLogger,
    inPlaceHindrance: (download, signal) => inPlaceHindrance(client, download, signal),
  });
  const actions: RestoreAction[] = [];
  for (const plugin of pluginsFor({ hasCsi: false, load: () => Promise.resolve(own) })) {
    if (plugin.kind !== 'RestoreItemActionV2') continue;
    const { name, appliesTo } = plugin;
    const action = await plugin.open(silentLogger);
    actions.push(
      asRestoreAction({
        name,
        appliesTo,
        action: {
          execute: (input, context) => action.execute(input, context),
          areAdditionalItemsReady: () => Promise.resolve(true),
        },
      }),
    );
  }
  return actions;
}

/** Velero's list calls an item with only a warning "failed". The texts differ. */
const left = (outcome: string): string => (outcome === 'failed' ? 'skipped' : outcome);
/** The results of a run name the object first. */
const bare = (text: string): string => text.replace(/^[A-Z]\w+ \S+: /, '');

interface Ended {
  /** `namespace/name(outcome)` by kind. */
  readonly outcomes: readonly string[];
  readonly warnings: readonly string[];
  readonly errors: readonly string[];
  readonly counts: object;
}

const textsOf = ({ velero, cluster, namespaces }: Results['errors'] = {}): string[] => {
  const all = [...(velero ?? []), ...(cluster ?? []), ...Object.values(namespaces ?? {}).flat()];
  return all.map(bare).sort();
};

async function restored(rig: Rig): Promise<Ended> {
  const { status } = await rig.run();
  const { errors, warnings } = await rig.archive.results('r1');
  const list = await rig.archive.resourceList('r1');
  const outcomes = Object.entries(list).flatMap(([kind, names]) =>
    names.map((name) => `${kind} ${name.replace(/\w+(?=\)$)/, left)}`),
  );
  const said = status as { progress?: { totalItems?: number }; warnings?: number; errors?: number };
  const counts = {
    items: said.progress?.totalItems ?? 0,
    warnings: said.warnings ?? 0,
    errors: said.errors ?? 0,
  };
  return {
    outcomes: outcomes.sort(),
    warnings: textsOf(warnings),
    errors: textsOf(errors),
    counts,
  };
}

async function rehearsed(rig: Rig, cluster: RestoreCluster): Promise<Ended> {
  const client = clientOf(cluster, true);
  const { signal } = new AbortController();
  const { restore } = rig;
  const archive = await new BackupArchive(rig.bucket).open('b1', { signal });
  const directory = mkdtempSync(join(scratch, 'rehearsal-'));
  await using items = await archive.openContents({ directory, signal });
  const backup = await identityOfStored(archive, signal);
  const discovery = await cluster.resources();
  const run = await RehearsedRun.open({
    client,
    discovery,
    restore,
    backup,
    items,
    stored: archive,
    hasCsi: true,
    signal,
    helper: { image: 'registry/longshore:v1', tag: 'v1' },
    inPlaceHindrance: (download, asked) => inPlaceHindrance(client, download, asked),
  });
  const outcomes: string[] = [];
  const texts: Record<string, string[]> = { warning: [], error: [], info: [] };
  const result = await rehearseRestore({
    client,
    discovery,
    restore,
    backup,
    items,
    actions: run.actions,
    run,
    signal,
    waitMs: 5,
    onItem: ({ kind, namespace, name, outcome, notes }) => {
      const place = namespace === '' ? name : `${namespace}/${name}`;
      outcomes.push(`${kind} ${place}(${left(outcome)})`);
      for (const { level, text } of notes) texts[level]?.push(bare(text));
    },
    onNote: ({ level, text }) => texts[level]?.push(bare(text)),
  });
  const { warning = [], error = [] } = texts;
  const { items: count, warnings, errors } = result;
  return {
    outcomes: outcomes.sort(),
    warnings: warning.sort(),
    errors: error.sort(),
    counts: { items: count, warnings, errors },
  };
}

it('a dry run says of each volume, in each warning and error, what the server reports', async () => {
  await fc.assert(
    fc.asyncProperty(given, async (some) => {
      const bucket = new MemoryBucket();
      await storeBackup(bucket, itemsOf(some), {
        volumeInfos: some.hasInfos
          ? (some.claims.filter(({ hasInfo }) => hasInfo).map(infoOf) as never)
          : [],
        podVolumeBackups: some.claims.filter(({ data }) => data === 'files').map(fileBackupOf),
      });
      const [before, cluster] = [clusterOf(some), clusterOf(some)];
      const rig = new Rig({
        cluster,
        bucket,
        spec: some.spec,
        actions: await actionsOf(clientOf(cluster)),
        ask: () =>
          Promise.resolve({
            kind: 'progress',
            progress: {
              completed: true,
              err: '',
              nCompleted: 1,
              nTotal: 1,
              operationUnits: '',
              description: '',
              started: undefined,
              updated: undefined,
            },
          }),
      });
      expect(await rehearsed(rig, before)).toEqual(await restored(rig));
    }),
    { numRuns: 200, interruptAfterTimeLimit: 100_000 },
  );
}, 300_000);
