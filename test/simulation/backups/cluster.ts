import type { Stored } from '../../../src/dev/store.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DATA_UPLOADS,
  type KubeObject,
  NAMESPACES,
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
const SPACES = ['a', 'b'];
const HOOK = 'hook.backup.velero.io';

/** What there is to be backed up; the same for the same random numbers. */
export interface Contents {
  /** `namespace/name`. */
  readonly pods: readonly string[];
  readonly claims: readonly string[];
  /** Whose upload fails. */
  readonly failing: ReadonlySet<string>;
  readonly backup: KubeObject;
}

/** Two namespaces with plain objects, volumes, and pods that are frozen by hooks; and a Backup of them. */
export function fill(world: World, random: Random): Contents {
  const { store } = world;
  const create = (resource: Resource<KubeObject>, namespace: string | undefined, o: object) =>
    store.create(resource, namespace, o as Stored);
  const pods: string[] = [];
  const claims: string[] = [];
  const failing = new Set<string>();
  for (const name of [NAMESPACE, ...SPACES]) create(NAMESPACES, undefined, { metadata: { name } });
  create(VOLUME_SNAPSHOT_CLASSES, undefined, {
    metadata: { name: 'any' },
    ...{ driver: 'csi.simulated', deletionPolicy: 'Delete' },
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
      if (random.chance(0.05)) failing.add(`${space}/v${i}`);
    }
    for (let i = 0; i < 1 + random.below(3); i++) {
      pods.push(`${space}/p${i}`);
      create(PODS, space, {
        metadata: {
          name: `p${i}`,
          annotations: {
            [`pre.${HOOK}/command`]: '["freeze"]',
            [`post.${HOOK}/command`]: '["thaw"]',
          },
        },
        spec: {
          containers: [{ name: 'c' }],
          volumes: [{ name: 'v', persistentVolumeClaim: { claimName: `v${i % volumes}` } }],
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
    spec: { includedNamespaces: SPACES, storageLocation: 'default', snapshotMoveData: true },
  }) as unknown as KubeObject;
  return { pods, claims, failing, backup };
}

/** Node-agents, as far as a server sees them: they take the snapshot of a DataUpload, move it for a while and say how that ended. */
export function serveUploads(world: World, contents: Contents, problems: string[]): void {
  const begun = new Map<string, string>();
  world.store.watch(DATA_UPLOADS, {}, world.store.version, (type, object) => {
    const { metadata, spec } = object as unknown as Loose;
    const claim = `${String(spec.sourceNamespace)}/${String(spec.sourcePVC)}`;
    if (type === 'DELETED') problems.push(`DataUpload ${metadata.name} was deleted`);
    if (spec.cancel === true) problems.push(`DataUpload ${metadata.name} was canceled`);
    if (type !== 'ADDED') return;
    const other = begun.get(claim);
    if (other !== undefined) problems.push(`${claim} has a second DataUpload beside ${other}`);
    begun.set(claim, metadata.name);
    const set = (status: object): void => {
      world.patch(DATA_UPLOADS, NAMESPACE, metadata.name, { status });
    };
    const { volumeSnapshot = '' } = spec.csiSnapshot as { volumeSnapshot?: string };
    const space = String(spec.sourceNamespace);
    world.after(500, 10_000, () => {
      const handle = take(world, space, volumeSnapshot);
      if (handle === undefined) {
        problems.push(`the snapshot of DataUpload ${metadata.name} is not there`);
        set({ phase: 'Failed', message: 'no snapshot' });
        return;
      }
      set({ phase: 'Accepted' });
      world.after(1000, 30_000, () => {
        const startTimestamp = new Date(0).toISOString();
        set({ phase: 'InProgress', startTimestamp, progress: { totalBytes: 10, bytesDone: 1 } });
        world.after(1000, 60_000, () => {
          set({ progress: { totalBytes: 10, bytesDone: 6 } });
          world.after(1000, 60_000, () => {
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

/** As an agent does that takes a snapshot over: its objects go, and what the storage has stays. */
function take(world: World, namespace: string, name: string): string | undefined {
  const content = world.contentNameOf(namespace, name);
  const found = content === undefined ? undefined : world.find(VOLUME_SNAPSHOT_CONTENTS, content);
  if (content === undefined || !found) return undefined;
  world.patch(VOLUME_SNAPSHOT_CONTENTS, '', content, { spec: { deletionPolicy: 'Retain' } });
  world.delete(VOLUME_SNAPSHOTS, namespace, name);
  world.delete(VOLUME_SNAPSHOT_CONTENTS, '', content);
  return (found.status as { snapshotHandle?: string } | undefined)?.snapshotHandle;
}
