import { type BackupVolumeInfo } from '../../../src/archive/index.ts';
import type { KubeObject } from '../../../src/kube/index.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { putBackup, stored, type StoredItem } from '../../restore/support/backup.ts';
import { NAMESPACE } from '../objects.ts';
import { SCRATCH } from '../servers/instant-io.ts';
import type { Random } from '../virtual-time.ts';

export const BACKUP = 'b1';
export const BACKUP_SPEC = { storageLocation: 'default', snapshotMoveData: true };
export const HOOKED = { hooked: 'yes' };
const SPACES = ['app-a', 'app-b'];
const HOOK = 'post.hook.restore.velero.io/command';

/** The behaviour of a restored pod. */
export interface PodFate {
  /** How long its containers take to run, once its volumes are ready. */
  readonly startMs: number;
  /** Commands of its hooks. */
  readonly hooks: readonly string[];
}

/**
 * The items of a backup, and their behaviour in any cluster, with the names of the backup. The same
 * random numbers give the same backup.
 */
export interface BackedUp {
  readonly items: readonly StoredItem[];
  readonly volumeInfos: readonly BackupVolumeInfo[];
  readonly podVolumeBackups: readonly KubeObject[];
  /** Whether the tarball has a file that is no object. */
  readonly hasBroken: boolean;
  /** Keyed by name, which is unique. */
  readonly pods: ReadonlyMap<string, PodFate>;
  /** Claims with moved volumes, and the claims whose download fails. */
  readonly moved: readonly string[];
  readonly failing: ReadonlySet<string>;
}

const sized = { resources: { requests: { storage: '1Gi' } } };

/** Two namespaces with plain objects, pods with hooks, and claims with moved or stored files. */
export function backedUp(random: Random): BackedUp {
  const items: StoredItem[] = [];
  const volumeInfos: BackupVolumeInfo[] = [];
  const podVolumeBackups: KubeObject[] = [];
  const pods = new Map<string, PodFate>();
  const moved: string[] = [];
  const failing = new Set<string>();
  const add = (type: string, id: string, more: object = {}): void => {
    items.push(stored(type, id, more));
  };
  /** Adds a claim with its volume and volume info. */
  const addClaim = (id: string, backupMethod: string, metadata: object = {}): void => {
    const [pvcNamespace = '', pvcName = ''] = id.split('/');
    const pvName = `pv-of-${pvcName}`;
    const spec = { storageClassName: 'simulated', accessModes: ['ReadWriteOnce'], ...sized };
    add('persistentvolumeclaims', id, { metadata, spec: { ...spec, volumeName: pvName } });
    add('persistentvolumes', pvName, {
      metadata: { labels: { tier: pvcName } },
      spec: {
        csi: { driver: 'csi.simulated', volumeHandle: `old-${pvcName}` },
        persistentVolumeReclaimPolicy: 'Retain',
        claimRef: { namespace: pvcNamespace, name: pvcName, uid: `old-${id.replace('/', '.')}` },
      },
    });
    volumeInfos.push({
      pvcNamespace,
      pvcName,
      pvName,
      backupMethod,
      result: 'succeeded',
      snapshotDataMoved: backupMethod === 'CSISnapshot',
      pvInfo: { reclaimPolicy: 'Retain', labels: { tier: pvcName } },
    });
  };
  for (const space of SPACES) {
    add('namespaces', space);
    for (let i = 0; i < 2 + random.below(6); i++) {
      add('configmaps', `${space}/map-${space}-${i}`, { data: { text: 'of the backup' } });
      if (i % 2 === 0) add('secrets', `${space}/secret-${space}-${i}`, { data: { a: 'YQ==' } });
    }
    add('serviceaccounts', `${space}/account-${space}`, { secrets: [{ name: 'more' }] });
    for (let i = 0; i < 1 + random.below(3); i++) {
      const name = `moved-${space}-${i}`;
      const upload = `upload-${name}`;
      const annotations = { 'velero.io/data-upload-name': `${NAMESPACE}/${upload}` };
      addClaim(`${space}/${name}`, 'CSISnapshot', { annotations });
      moved.push(name);
      if (random.chance(0.08)) failing.add(name);
      add('datauploads.velero.io', `${NAMESPACE}/${upload}`, {
        metadata: { labels: { 'velero.io/backup-name': BACKUP } },
        spec: {
          sourceNamespace: space,
          sourcePVC: name,
          snapshotType: 'CSI',
          csiSnapshot: { volumeSnapshot: upload, storageClass: 'simulated' },
          backupStorageLocation: 'default',
          operationTimeout: '10m0s',
        },
        status: { phase: 'Completed', snapshotID: `id-${name}`, progress: { totalBytes: 10 } },
      });
    }
    for (let i = 0; i < 1 + random.below(3); i++) {
      const name = `pod-${space}-${i}`;
      const hasFiles = random.chance(0.4);
      const claim = `files-${space}-${i}`;
      const isAnnotated = random.chance(0.3);
      const isHooked = !isAnnotated && random.chance(0.6);
      if (hasFiles) {
        addClaim(`${space}/${claim}`, 'PodVolumeBackup');
        podVolumeBackups.push(fileBackup(space, name, claim));
      }
      add('pods', `${space}/${name}`, {
        metadata: {
          labels: isHooked ? HOOKED : { hooked: 'no' },
          ...(isAnnotated && { annotations: { [HOOK]: '["annotated"]' } }),
        },
        spec: {
          nodeName: 'node',
          containers: [{ name: 'web', image: 'web' }],
          volumes: [
            { name: 'v', persistentVolumeClaim: { claimName: hasFiles ? claim : moved.at(-1) } },
          ],
        },
        status: { phase: 'Running' },
      });
      const hooks = isAnnotated ? ['annotated'] : isHooked ? ['run', 'fail'] : [];
      const isSlow = random.chance(0.2);
      pods.set(name, { startMs: random.between(500, isSlow ? 1_800_000 : 30_000), hooks });
    }
  }
  const hasBroken = random.chance(0.2);
  return { items, volumeInfos, podVolumeBackups, hasBroken, pods, moved, failing };
}

const fileBackup = (namespace: string, pod: string, claim: string): KubeObject =>
  ({
    apiVersion: 'velero.io/v1',
    kind: 'PodVolumeBackup',
    metadata: {
      name: `pvb-${pod}`,
      namespace: NAMESPACE,
      uid: `old-pvb-${pod}`,
      labels: { 'velero.io/backup-name': BACKUP },
      annotations: { 'velero.io/pvc-name': claim },
    },
    spec: {
      node: 'node',
      pod: { kind: 'Pod', namespace, name: pod },
      volume: 'v',
      backupStorageLocation: 'default',
      uploaderType: 'kopia',
    },
    status: { phase: 'Completed', snapshotID: `id-${pod}`, progress: { totalBytes: 10 } },
  }) as unknown as KubeObject;

/** The files of the backup by key. Needs scratch space. */
export async function storedBackup({
  items,
  volumeInfos,
  podVolumeBackups,
  hasBroken,
}: BackedUp): Promise<ReadonlyMap<string, Buffer>> {
  const bucket = new MemoryBucket();
  await putBackup(bucket, items, {
    volumeInfos,
    podVolumeBackups,
    spec: BACKUP_SPEC,
    directory: SCRATCH,
    raw: hasBroken ? { 'resources/configmaps/namespaces/app-a/broken.json': '{' } : {},
  });
  return bucket.objects;
}
