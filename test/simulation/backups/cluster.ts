import type { Stored } from '../../../src/dev/api-server/store.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DATA_UPLOADS,
  type KubeObject,
  NAMESPACES,
  POD_VOLUME_BACKUPS,
  PODS,
  type Resource,
  SECRETS,
  VOLUME_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../../src/kube/index.ts';
import { type Loose, NAMESPACE } from '../objects.ts';
import type { Random } from '../virtual-time.ts';
import type { World } from '../world.ts';

export const BACKUP = 'b1';
const NODE = 'node';
const SPACES = ['a', 'b'];
const HOOK = 'hook.backup.velero.io';

/** The objects to back up. The same random numbers give the same contents. */
export interface Contents {
  /** `namespace/name`. */
  readonly pods: readonly string[];
  readonly claims: readonly string[];
  /** Whether snapshots are moved. If not, they stay in the storage. */
  readonly isMoved: boolean;
  /** Pods with a volume that is backed up by its files. */
  readonly files: readonly string[];
  /** Claims whose upload fails. */
  readonly failing: ReadonlySet<string>;
  readonly backup: KubeObject;
}

/** Fills two namespaces with objects, volumes, and pods with freeze hooks. Makes a Backup. */
export function fill(world: World, random: Random): Contents {
  const { store } = world;
  const create = (resource: Resource<KubeObject>, namespace: string | undefined, o: object) =>
    store.create(resource, namespace, o as Stored);
  const pods: string[] = [];
  const claims: string[] = [];
  const failing = new Set<string>();
  const files: string[] = [];
  const isMoved = random.chance(0.6);
  create(PODS, NAMESPACE, {
    metadata: { name: 'agent', labels: { role: 'node-agent' } },
    spec: { nodeName: NODE, containers: [] },
  });
  world.patch(PODS, NAMESPACE, 'agent', { status: { phase: 'Running' } });
  for (const name of [NAMESPACE, ...SPACES]) create(NAMESPACES, undefined, { metadata: { name } });
  create(VOLUME_SNAPSHOT_CLASSES, undefined, {
    metadata: { name: 'any' },
    driver: 'csi.simulated',
    deletionPolicy: 'Delete',
  });
  for (const space of SPACES) {
    for (let i = 0; i < 2 + random.below(8); i++) {
      create(CONFIG_MAPS, space, { metadata: { name: `c${i}` }, data: { text: 'x'.repeat(500) } });
      if (i % 2 === 0) create(SECRETS, space, { metadata: { name: `s${i}` }, data: {} });
    }
    const volumes = 1 + random.below(3);
    for (let i = 0; i < volumes; i++) {
      world.addVolume(space, `v${i}`, `content ${space}${i}`);
      claims.push(`${space}/v${i}`);
      if (isMoved && random.chance(0.05)) failing.add(`${space}/v${i}`);
    }
    for (let i = 0; i < 1 + random.below(3); i++) {
      const pod = `${space}/p${i}`;
      pods.push(pod);
      const hasFiles = random.chance(0.3);
      if (hasFiles) files.push(pod);
      create(PODS, space, {
        metadata: {
          name: `p${i}`,
          annotations: {
            [`pre.${HOOK}/command`]: '["freeze"]',
            [`post.${HOOK}/command`]: '["thaw"]',
            ...(hasFiles && { 'backup.velero.io/backup-volumes': 'files' }),
          },
        },
        spec: {
          nodeName: NODE,
          containers: [{ name: 'c', volumeMounts: [{ name: 'files', mountPath: '/files' }] }],
          volumes: [
            { name: 'v', persistentVolumeClaim: { claimName: `v${i % volumes}` } },
            { name: 'files', emptyDir: {} },
          ],
        },
      });
      world.patch(PODS, space, `p${i}`, { status: { phase: 'Running' } });
    }
  }
  create(BACKUP_STORAGE_LOCATIONS, NAMESPACE, {
    metadata: { name: 'default' },
    spec: { provider: 'aws', objectStorage: { bucket: 'b' }, default: true },
    status: { phase: 'Available' },
  });
  const backup = create(BACKUPS, NAMESPACE, {
    metadata: { name: BACKUP },
    spec: { includedNamespaces: SPACES, storageLocation: 'default', snapshotMoveData: isMoved },
  }) as unknown as KubeObject;
  return { pods, claims, isMoved, files, failing, backup };
}

/** Checks on the simulated agents. */
export interface Serving {
  readonly problems: string[];
  /** Whether the Backup was deleted. Its dependents are then collected, even later ones. */
  readonly isOrphaned: () => boolean;
}

/** Kubernetes' garbage collector: deletes dependents of the Backup some time after it. */
export function collectOwned(world: World, resource: Resource<KubeObject>, name: string): void {
  world.after(100, 20_000, () => {
    world.delete(resource, NAMESPACE, name);
  });
}

/** Simulates node-agents: they move the snapshot of a DataUpload, and set the final phase. */
export function serveUploads(world: World, contents: Contents, serving: Serving): void {
  const { problems, isOrphaned } = serving;
  const begun = new Map<string, string>();
  const handles = new Map<string, string>();
  /** Deletes the snapshot that an agent took over. */
  const end = (name: string): void => {
    const handle = handles.get(name);
    if (handle !== undefined) world.snapshots.delete(handle);
  };
  world.store.watch(DATA_UPLOADS, {}, world.store.version, (type, object) => {
    const { metadata, spec } = object as unknown as Loose;
    const claim = `${String(spec.sourceNamespace)}/${String(spec.sourcePVC)}`;
    if (isOrphaned()) {
      if (type === 'DELETED') world.after(500, 10_000, () => end(metadata.name));
      if (type === 'ADDED') collectOwned(world, DATA_UPLOADS, metadata.name);
    } else {
      if (type === 'DELETED') problems.push(`DataUpload ${metadata.name} was deleted`);
      if (spec.cancel === true) problems.push(`DataUpload ${metadata.name} was canceled`);
    }
    if (type !== 'ADDED') return;
    const other = begun.get(claim);
    if (other !== undefined) problems.push(`${claim} has a second DataUpload beside ${other}`);
    begun.set(claim, metadata.name);
    const set = (status: object): void => {
      world.patch(DATA_UPLOADS, NAMESPACE, metadata.name, { status });
    };
    /** Whether an agent continues. */
    const goesOn = (): boolean => {
      const now = world.find(DATA_UPLOADS, metadata.name, NAMESPACE);
      if (!now) return false;
      if (now.spec.cancel !== true) return true;
      if (now.status?.phase !== 'Canceled') set({ phase: 'Canceled' });
      end(metadata.name);
      return false;
    };
    const { volumeSnapshot = '' } = spec.csiSnapshot as { volumeSnapshot?: string };
    const space = String(spec.sourceNamespace);
    world.after(500, 10_000, () => {
      if (!world.find(DATA_UPLOADS, metadata.name, NAMESPACE)) return;
      const handle = take(world, space, volumeSnapshot);
      if (handle !== undefined) handles.set(metadata.name, handle);
      if (!goesOn()) return;
      if (handle === undefined) {
        problems.push(`the snapshot of DataUpload ${metadata.name} is not there`);
        set({ phase: 'Failed', message: 'no snapshot' });
        return;
      }
      set({ phase: 'Accepted' });
      world.after(1000, 30_000, () => {
        if (!goesOn()) return;
        const startTimestamp = new Date(0).toISOString();
        set({ phase: 'InProgress', startTimestamp, progress: { totalBytes: 10, bytesDone: 1 } });
        world.after(1000, 60_000, () => {
          if (!goesOn()) return;
          set({ progress: { totalBytes: 10, bytesDone: 6 } });
          world.after(1000, 60_000, () => {
            if (!goesOn()) return;
            const completionTimestamp = new Date(0).toISOString();
            world.snapshots.delete(handle);
            if (contents.failing.has(claim)) {
              set({ phase: 'Failed', message: 'the volume broke', completionTimestamp });
              return;
            }
            const progress = { totalBytes: 10, bytesDone: 10 };
            set({ phase: 'Completed', snapshotID: `id-${claim}`, progress, completionTimestamp });
          });
        });
      });
    });
  });
}

/** Simulates uploads of pods' files, and repositories that become ready. */
export function serveFiles(world: World, { problems, isOrphaned }: Serving): void {
  const begun = new Set<string>();
  world.store.watch(BACKUP_REPOSITORIES, {}, world.store.version, (type, { metadata }) => {
    if (type !== 'ADDED') return;
    world.after(500, 5000, () => {
      world.patch(BACKUP_REPOSITORIES, NAMESPACE, metadata.name, { status: { phase: 'Ready' } });
    });
  });
  world.store.watch(POD_VOLUME_BACKUPS, {}, world.store.version, (type, object) => {
    const { metadata, spec } = object as unknown as Loose;
    const { namespace = '', name = '' } = spec.pod as { namespace?: string; name?: string };
    const pod = `${namespace}/${name}`;
    if (isOrphaned()) {
      if (type === 'ADDED') collectOwned(world, POD_VOLUME_BACKUPS, metadata.name);
    } else if (type === 'DELETED') {
      problems.push(`PodVolumeBackup ${metadata.name} was deleted`);
    }
    if (type !== 'ADDED') return;
    if (begun.has(pod)) problems.push(`${pod} has a second PodVolumeBackup`);
    begun.add(pod);
    const set = (status: object): void => {
      world.patch(POD_VOLUME_BACKUPS, NAMESPACE, metadata.name, { status });
    };
    const time = new Date(0).toISOString();
    world.after(500, 20_000, () => {
      set({ phase: 'InProgress', startTimestamp: time });
      world.after(1000, 60_000, () => {
        const progress = { totalBytes: 10, bytesDone: 10 };
        set({ phase: 'Completed', snapshotID: `id-${pod}`, progress, completionTimestamp: time });
      });
    });
  });
}

/** Takes a snapshot over, like an agent: deletes its objects and keeps the storage's snapshot. */
export function take(world: World, namespace: string, name: string): string | undefined {
  const content = world.contentNameOf(namespace, name);
  const found = content === undefined ? undefined : world.find(VOLUME_SNAPSHOT_CONTENTS, content);
  if (content === undefined || !found) return undefined;
  world.patch(VOLUME_SNAPSHOT_CONTENTS, '', content, { spec: { deletionPolicy: 'Retain' } });
  world.delete(VOLUME_SNAPSHOTS, namespace, name);
  world.delete(VOLUME_SNAPSHOT_CONTENTS, '', content);
  return (found.status as { snapshotHandle?: string } | undefined)?.snapshotHandle;
}
